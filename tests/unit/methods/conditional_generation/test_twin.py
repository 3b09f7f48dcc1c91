"""What is chosen before the charge on the model's own texts: clip norm and learning rate."""

import functools
import math

import pytest
import torch

from understudy.data.private_rows import PrivateRows
from understudy.errors import InputError
from understudy.methods.conditional_generation import twin as own
from understudy.methods.conditional_generation.encode import encode
from understudy.methods.conditional_generation.losses import lm_loss
from understudy.methods.conditional_generation.method import METHOD
from understudy.methods.conditional_generation.model import MultitaskModel
from understudy.methods.conditional_generation.twin import (
    Twin,
    clip_norm,
    damage,
    drift,
    learning_rate,
    own_rows,
    resolve_for,
)
from understudy.models import choices
from understudy.models.loading import load_model


@pytest.fixture(scope="module")
def tokenizer():
    """A whole one: texts of few different tokens are so alike that training on some helps others at every rate."""
    return load_model("tiny-llama").tokenizer


@pytest.fixture
def twin_of(make_base, make_config, label_names):
    def made(steps: int = 12, scale: float = 1.0, **changes) -> Twin:
        def base():
            loaded = make_base(layers=1)
            with torch.no_grad():
                loaded.model.get_output_embeddings().weight.mul_(scale)
            return loaded

        config = make_config(**{"about": "notes", "train": {"micro_batch": 32}, **changes})
        return Twin(base, own_rows(base(), label_names, config), config, steps)

    return made


def test_a_larger_rate_does_more_damage_and_no_step_none(twin_of):
    twin = twin_of(steps=6)
    harms = [damage(twin, rate) for rate in (1e-5, 2e-2, 1e-1)]
    assert abs(harms[0]) < 1e-3
    assert harms[0] < harms[1] < harms[2]
    assert damage(twin, 2e-2) == harms[1]  # a function of public values


def test_without_noise_one_half_is_trained_on_and_the_other_tested(twin_of, monkeypatch):
    monkeypatch.setattr(own, "_STEPS_WITHOUT_NOISE", 6)
    twin, asked = twin_of(steps=48), []
    ways = [drift(twin, rate) for rate in (1e-6, 2e-3, 2e-2)]
    assert abs(ways[0]) < 1e-3
    assert ways[0] < ways[1] < ways[2]
    assert drift(twin, 2e-2) == ways[2]  # a function of public values

    monkeypatch.setattr(own, "_rise", lambda _, rate, **more: asked.append((rate, more)))
    drift(twin, 1e-3)
    ((rate, more),) = asked
    halves = [more[name].texts for name in ("trained_on", "tested_on")]
    assert sorted(halves[0] + halves[1]) == sorted(twin.rows.texts)
    assert abs(len(halves[0]) - len(halves[1])) <= 1
    assert (more["noise"], more["drawn"]) == (0.0, 1.0)
    assert rate * more["steps"] == pytest.approx(48e-3)  # as far along one gradient as the run's steps


def test_padding_that_is_cut_moves_no_loss(twin_of):
    twin, fields = twin_of(), ("input_ids", "attention_mask", "loss_mask")
    base, texts = twin.base(), ["", "a", "a few", "a few words", "a few words and more"] * 3
    private = PrivateRows(texts, [place % 2 for place in range(len(texts))], twin.rows.label_names)
    rows, model = encode(private, tokenizer=base.tokenizer, config=twin.config), MultitaskModel(base.model)
    whole = {name: getattr(rows, name) for name in fields}
    for row in range(5):
        cut = own._cut({**{name: values[row : row + 1] for name, values in whole.items()}, "label": rows.label[:1]})
        assert bool(cut["attention_mask"][0, -1])
        assert int(cut["attention_mask"].sum()) == int(rows.attention_mask[row].sum())
        assert torch.equal(cut["input_ids"][0], rows.input_ids[row, : cut["attention_mask"].shape[1]])
        assert torch.equal(cut["label"], rows.label[:1])
    with torch.no_grad():
        expected = float(lm_loss(model, whole, prompts=rows.prompts).mean())
    assert own._loss(model, rows) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("harm", "bounds"), [(damage, (0.0, 0.05, math.inf)), (drift, (0.05,))])
def test_the_rate_is_the_largest_that_does_little_harm(twin_of, harm, bounds):
    """Every rate's harm, which is a function of public values, is found once."""
    twin = twin_of(steps=6)
    done = functools.cache(lambda rate: harm(twin, rate))
    for most in bounds:
        chosen = learning_rate(twin, (lambda _, rate: done(rate), most))
        at = own.RATES.index(chosen)
        assert at == 0 or done(chosen) <= most
        assert at == len(own.RATES) - 1 or done(own.RATES[at + 1]) > most


def test_the_rule_follows_epsilon_and_so_does_what_is_remembered(
    make_base, make_config, label_names, tmp_path, monkeypatch
):
    monkeypatch.setattr(own, "check_model", lambda *_: None)
    monkeypatch.setattr(choices, "folder_digest", lambda _: "digest")
    monkeypatch.setattr(choices, "model_folder", lambda _: tmp_path)
    config = make_config(train={"l2_clip_norm": 0.1}, about="notes")
    for name, first_harmful in (("damage", 1e-2), ("drift", 2e-3)):
        monkeypatch.setattr(own, name, lambda _, rate, bound=first_harmful: 9.0 if rate >= bound else 0.0)
    found = {
        epsilon: resolve_for(config, 40, label_names, base=make_base, kept_in=tmp_path, epsilon=epsilon).train.rates[0]
        for epsilon in (8.0, math.inf, 1.0)
    }
    assert found == {8.0: 8e-3, math.inf: 1e-3, 1.0: 8e-3}


def test_the_rate_of_prompts_with_topics_is_found_on_those_prompts(
    make_base, make_config, label_names, tmp_path, monkeypatch
):
    """And kept apart from that of prompts without, or with other words."""
    monkeypatch.setattr(own, "check_model", lambda *_: None)
    monkeypatch.setattr(choices, "folder_digest", lambda _: "digest")
    monkeypatch.setattr(choices, "model_folder", lambda _: tmp_path)
    asked = []
    monkeypatch.setattr(own, "damage", lambda twin, _rate: asked.append(twin.config.topics.found) or 0.0)
    topics = [{}, {"keywords": [["film"]]}, {"keywords": [["film"], ["plot"]]}, {"keywords": [["film"]]}]
    for one in topics:
        config = make_config(train={"l2_clip_norm": 0.1}, topics=one)
        resolve_for(config, 40, label_names, base=make_base, kept_in=tmp_path, epsilon=8.0)
    assert list(dict.fromkeys(asked)) == [(), (("film",),), (("film",), ("plot",))]
    tried = len(asked) // 3
    assert asked == [()] * tried + [(("film",),)] * tried + [(("film",), ("plot",))] * tried


def test_long_trainings_are_scaled_down(twin_of, monkeypatch):
    twin = twin_of(steps=32)
    whole = damage(twin, 2e-2)
    monkeypatch.setattr(own, "_STEPS", 8)
    part = damage(twin, 2e-2)
    assert part == pytest.approx(whole, rel=0.8)


def test_the_clip_norm_lies_below_the_gradients_of_own_texts(twin_of, label_names):
    large, small = (clip_norm(twin_of(scale=scale, variant="naive")) for scale in (1.0, 1e-4))
    assert large == 0.1
    assert small < 0.1
    assert math.log2(0.1 / small) == int(math.log2(0.1 / small))


def test_auto_becomes_numbers_once_and_what_is_given_stays(make_base, make_config, label_names, tmp_path, monkeypatch):
    monkeypatch.setattr(own, "check_model", lambda *_: None)
    monkeypatch.setattr(choices, "folder_digest", lambda _: "digest")
    monkeypatch.setattr(choices, "model_folder", lambda _: tmp_path)
    config, calls = make_config(train={"learning_rate": 0.003}), []

    def base():
        calls.append(1)
        return make_base()

    first = resolve_for(config, 40, label_names, base=base, kept_in=tmp_path, epsilon=8.0)
    loads = len(calls)
    assert first.train.rates == (0.003, 0.003)
    assert first.train.l2_clip_norm <= 0.1
    assert resolve_for(config, 40, label_names, base=base, kept_in=tmp_path, epsilon=8.0) == first
    assert len(calls) == loads
    assert resolve_for(first, 40, label_names, base=None, kept_in=tmp_path, epsilon=8.0) == first


def test_what_cannot_be_trained_is_refused_before_a_text_is_written(make_config, tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "home"))
    config = make_config(model="tiny-llama", train={"max_length": 8000})
    with pytest.raises(InputError, match="context"):
        METHOD.preparation.resolve(config, 40, ("negative", "positive"), 8.0)


def test_the_rate_is_that_which_harms_the_average_little(twin_of, make_config, label_names, tmp_path, monkeypatch):
    """That is what is released, so another decay is another question, and none is the one that was always asked."""
    plain, averaged = (twin_of(steps=24, train={"micro_batch": 32, "averaging": decay}) for decay in (0.0, 0.99))
    assert damage(averaged, 5e-2) < damage(plain, 5e-2)

    asked = []
    monkeypatch.setattr(own, "remembered", lambda question, *_, **__: asked.append(question) or {})
    monkeypatch.setattr(choices, "folder_digest", lambda _: "digest")
    monkeypatch.setattr(choices, "model_folder", lambda _: tmp_path)
    for decay in (0.0, 0.9, 0.99):
        config = make_config(train={"averaging": decay}, about="notes")
        resolve_for(config, 40, label_names, base=lambda: None, kept_in=tmp_path, epsilon=8.0)
    assert "averaging" not in asked[0]
    assert [question["averaging"] for question in asked[1:]] == [0.9, 0.99]
