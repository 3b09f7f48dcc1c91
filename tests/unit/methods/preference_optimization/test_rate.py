"""The learning rate of preferences: what it is chosen by, and that it is chosen once."""

import math
from dataclasses import replace

import pytest
from random_models import random_model

from understudy.generation.config import SamplingConfig
from understudy.methods.preference_optimization import rate
from understudy.methods.preference_optimization.config import CandidateConfig, PreferenceOptimizationConfig
from understudy.methods.preference_optimization.dpo import NotFinite
from understudy.methods.preference_optimization.method import METHOD
from understudy.methods.preference_optimization.rate import OwnTexts, chosen_rate, damage, write_own
from understudy.models.loading import load_model

SEEDS = [f"seed text number {number} about the weather" for number in range(9)]
CONFIG = PreferenceOptimizationConfig(
    model="tiny-gpt2",
    about="letters",
    candidates=CandidateConfig(
        style="plain", seeds_per_prompt=1, seed_tokens=8, sampling=SamplingConfig(max_new_tokens=8, top_p=1.0)
    ),
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base():
    """Two random layers with the tokenizer of tiny-gpt2."""
    shipped = load_model("tiny-gpt2")
    more = {"bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.3}
    model = random_model("gpt2", vocabulary=len(shipped.tokenizer), width=16, positions=128, **more)
    return replace(shipped, model=model)


@pytest.fixture(scope="module")
def own(base) -> OwnTexts:
    return write_own(base, CONFIG, SEEDS, None)


def test_what_is_tested_on_is_not_what_is_trained_on(own):
    assert 0 < len(own.pairs.prompts) <= 4
    assert not {*own.pairs.chosen, *own.pairs.rejected} & {text for _, text in own.others}
    assert all(one != other for one, other in zip(own.pairs.chosen, own.pairs.rejected, strict=True))
    assert len({text for _, text in own.others}) > 8


def test_a_larger_rate_does_more_damage(base, own):
    harms = [damage(base, own, CONFIG, given) for given in (1e-6, 1e-3, 1e-2)]
    assert abs(harms[0]) < 1e-3
    assert harms[0] < harms[1] < harms[2]


def test_the_rate_is_the_largest_of_the_ladder_that_does_little_damage(base, own, tmp_path, monkeypatch):
    monkeypatch.setattr(rate, "load_base", lambda _: base)
    monkeypatch.setattr(rate, "write_own", lambda *_: own)
    monkeypatch.setattr(rate, "damage", lambda *given: given[-1])
    for number, (most, at) in enumerate([(math.inf, 0), (rate.RATES[2], 2), (-math.inf, -1)]):
        monkeypatch.setattr(rate, "MOST_DAMAGE", most)
        assert chosen_rate(CONFIG, SEEDS, (), kept_in=tmp_path / str(number)) == rate.RATES[at]


def test_numbers_that_are_not_finite_are_the_greatest_damage(base, own, monkeypatch):
    def fails(*_, **__):
        raise NotFinite("not finite")

    monkeypatch.setattr(rate, "train_round", fails)
    assert damage(base, own, CONFIG, 1e-3) == math.inf


def test_it_is_chosen_once_and_a_given_rate_stays(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path))
    monkeypatch.setattr(rate, "damage", lambda *given: asked.append(given[-1]) or (9.0 if given[-1] > 3e-4 else 0.0))
    first = METHOD.preparation.resolve(CONFIG, 100, ())
    assert first.preferences.rate == 2.5e-4
    assert asked == [1e-3, 5e-4, 2.5e-4]
    assert METHOD.preparation.resolve(CONFIG, 100, ()) == first
    assert METHOD.preparation.resolve(first, 100, ()) == first
    assert len(asked) == 3
    other = CONFIG.model_copy(update={"about": "tickets"})
    assert METHOD.preparation.resolve(other, 100, ()).preferences.rate == 2.5e-4
    assert len(asked) == 6
