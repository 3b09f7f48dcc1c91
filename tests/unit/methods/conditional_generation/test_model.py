import pytest
import torch

from understudy.errors import InputError
from understudy.methods.conditional_generation.model import build_model, merge_adapters
from understudy.methods.conditional_generation.train import check_trainable
from understudy.models.lora import trainable_parameters

IDS = torch.arange(2, 14)[None]


def test_build_is_a_function_of_the_public_seed(make_base, make_config, label_names):
    def weights(**changes):
        model = build_model(make_base().model, label_names=label_names, config=make_config(**changes))
        return {name: value.clone() for name, value in model.state_dict().items()}

    before = torch.get_rng_state()
    one, same, other = weights(), weights(), weights(public_seed=1)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[name], same[name]) for name in one)
    changed = {name for name in one if not torch.equal(one[name], other[name])}
    assert "discriminator.inner.weight" in changed
    assert any("lora_A" in name for name in changed)


@pytest.mark.parametrize(
    ("variant", "parts"),
    [
        ("naive", {"lm"}),
        ("naive_filter", {"lm", "filter"}),
        ("naive_pplm", {"lm", "discriminator"}),
        ("multitask", {"lm", "discriminator"}),
        ("untrained", set()),
    ],
)
def test_each_variant_trains_its_parts(make_base, make_config, label_names, variant, parts):
    model = build_model(make_base().model, label_names=label_names, config=make_config(variant=variant))
    assert {name.split(".")[0] for name in trainable_parameters(model)} == parts
    assert not model.training
    assert (model.classifier is None) == (variant in ("naive", "untrained"))


def test_a_filter_without_adapters_trains_its_head_only(make_base, make_config, label_names):
    config = make_config(variant="naive_filter", filter={"lora_rank": 0})
    model = build_model(make_base().model, label_names=label_names, config=config)
    names = [name for name in trainable_parameters(model) if name.startswith("filter.")]
    assert names
    assert all(name.startswith("filter.discriminator.") for name in names)


def test_frozen_layers_are_the_last_ones(make_base, make_config, label_names):
    config = make_config(lora={"rank": 0}, train={"frozen_layers": 1})
    model = build_model(make_base("gpt2").model, label_names=label_names, config=config)
    trained = set(trainable_parameters(model.lm))
    assert any(name.startswith("transformer.h.0.") for name in trained)
    assert not any(name.startswith("transformer.h.1.") for name in trained)
    assert "transformer.wte.weight" in trained


def test_all_layers_frozen_leaves_embeddings_as_in_the_paper(make_base, make_config, label_names):
    config = make_config(lora={"rank": 0}, train={"frozen_layers": 2})
    model = build_model(make_base("gpt2").model, label_names=label_names, config=config)
    assert set(trainable_parameters(model.lm)) == {
        "transformer.wte.weight",
        "transformer.wpe.weight",
        "transformer.ln_f.weight",
        "transformer.ln_f.bias",
    }


@pytest.mark.parametrize(
    ("rank", "frozen", "message"), [(2, 3, "at most 2"), (2, 2, "leaves nothing to train")], ids=["many", "all"]
)
def test_impossible_freezing_is_refused(make_base, make_config, label_names, rank, frozen, message):
    config = make_config(lora={"rank": rank}, train={"frozen_layers": frozen})
    with pytest.raises(InputError, match=message):
        build_model(make_base().model, label_names=label_names, config=config)


@pytest.mark.parametrize("variant", ["multitask", "naive_filter"])
def test_merging_keeps_the_function(make_base, make_config, label_names, variant):
    model = build_model(make_base().model, label_names=label_names, config=make_config(variant=variant))
    parts = [model] if model.filter is None else [model, model.filter]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in trainable_parameters(model).values():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        before = [part.lm(input_ids=IDS).logits for part in parts]
        merge_adapters(model)
        after = [part.lm(input_ids=IDS).logits for part in parts]
    for one, other in zip(before, after, strict=True):
        assert torch.allclose(one, other, atol=1e-4)
    assert not trainable_parameters(model)
    assert not any("lora" in name for name in model.state_dict())


def test_head_needs_a_discriminator(make_base, make_config, label_names):
    model = build_model(make_base().model, label_names=label_names, config=make_config(variant="naive"))
    with pytest.raises(InputError, match="no discriminator"):
        model.label_logits(torch.zeros(1, 16))


def test_a_layer_without_per_example_gradients_is_named(make_base, make_config, label_names):
    model = build_model(make_base().model, label_names=label_names, config=make_config(lora={"rank": 0}))
    check_trainable(model, config=make_config())
    model.lm.model.norm = torch.nn.GroupNorm(2, 16)
    with pytest.raises(InputError, match=r"lm\.model\.norm"):
        check_trainable(model, config=make_config())


@pytest.mark.parametrize("changes", [{"train": {"max_length": 65}}, {"generate": {"sampling": {"max_new_tokens": 62}}}])
def test_what_exceeds_the_context_is_refused_before_training(untrained, make_config, changes):
    check_trainable(untrained.model, config=make_config(), prompts=untrained.prompts)
    with pytest.raises(InputError, match="context holds 64"):
        check_trainable(untrained.model, config=make_config(**changes), prompts=untrained.prompts)
