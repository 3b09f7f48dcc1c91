"""A setting that the variant does not read costs nothing: what is charged, and trained, stays as it is."""

import pytest
import torch

from understudy.data.private_rows import PrivateRows
from understudy.methods.conditional_generation.encode import encode
from understudy.methods.conditional_generation.method import charged_settings
from understudy.methods.conditional_generation.queries import Asked, queries_of, schedule_of
from understudy.methods.conditional_generation.train import fit

JOINT, ALTERNATING = {"update": "joint"}, {"update": "alternating"}
NAIVE, FILTERED, PPLM = ({"variant": name} for name in ("naive", "naive_filter", "naive_pplm"))
HEAD = {"width": 4, "prefix_step": 3, "representation": "last", "loss_weight": 0.7}

# (settings of a variant, other values that it does not read)
UNREAD = {
    "noise ratio of one stream": (JOINT, {"train": {"noise_ratio": 2.0}}),
    "second rate of one stream": (JOINT, {"train": {"discriminator_learning_rate": 0.3}}),
    "weight of losses that are not added": (ALTERNATING, {"discriminator": {"loss_weight": 0.7}}),
    "naive has no head": (NAIVE, {"discriminator": HEAD}),
    "naive has one stream": (NAIVE, {"train": {"noise_ratio": 2.0, "discriminator_learning_rate": 0.3}}),
    "naive has one gradient": (NAIVE, {"update": "alternating"}),
    "filter of no filter": (PPLM, {"filter": {"lora_rank": 3}}),
    "scale of no adapters": (
        {**JOINT, "lora": {"rank": 0}},
        {"lora": {"rank": 0, "alpha": 3.0, "targets": ("v_proj",)}},
    ),
    "share of no histogram": (JOINT, {"class_sizes_share": 0.3}),
    "share of no means": ({**JOINT, "selection": {"draws": 1}}, {"selection": {"draws": 1, "share": 0.3}}),
}
READ = {
    "noise ratio": (ALTERNATING, {"train": {"noise_ratio": 2.0}}),
    "noise ratio of the filter": (FILTERED, {"train": {"noise_ratio": 2.0}}),
    "second rate": (PPLM, {"train": {"discriminator_learning_rate": 0.3}}),
    "weight": (JOINT, {"discriminator": {"loss_weight": 0.7}}),
    "head": (ALTERNATING, {"discriminator": {"width": 4}}),
    "the filter's adapters": ({**FILTERED, "lora": {"rank": 0}}, {"lora": {"rank": 0, "alpha": 3.0}}),
    "rank of the filter": (FILTERED, {"filter": {"lora_rank": 3}}),
    "adapters": (NAIVE, {"lora": {"alpha": 3.0}}),
    "share of the histogram": ({"class_sizes": "as_in_data"}, {"class_sizes_share": 0.3}),
    "share of the means": ({"selection": {"draws": 2}}, {"selection": {"draws": 2, "share": 0.3}}),
}


@pytest.fixture
def trained(make_base, make_config, make_rows, make_mechanisms, label_names):
    """What two steps leave of a small model, trained with the settings themselves and not with the charged ones."""

    def trained(changes):
        config, base = make_config(**changes), make_base("llama")
        texts, labels = make_rows()
        planned = schedule_of(queries_of(config, n=len(texts), epsilon=8.0, delta=1e-3))
        rows = encode(PrivateRows(texts, labels, label_names), tokenizer=base.tokenizer, config=config)
        found = fit(base, rows, Asked(config, planned, make_mechanisms(planned)), checkpoints=None, progress=None)
        return planned, found.model.state_dict()

    return trained


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_read_is_not_charged_and_changes_nothing(trained, make_config, name):
    variant, other = UNREAD[name]
    few = {"train": {"epochs": 0.5, **other.get("train", {})}}
    one, changed = {**variant, "train": {"epochs": 0.5}}, {**variant, **other, **few}
    assert make_config(**one) != make_config(**changed)
    assert charged_settings(make_config(**one)) == charged_settings(make_config(**changed))
    (planned, weights), (other_plan, other_weights) = trained(one), trained(changed)
    assert planned == other_plan
    assert all(torch.equal(weights[key], other_weights[key]) for key in weights)


@pytest.mark.parametrize("name", READ)
def test_what_is_read_is_charged(make_config, name):
    variant, other = READ[name]
    assert charged_settings(make_config(**variant)) != charged_settings(make_config(**{**variant, **other}))
