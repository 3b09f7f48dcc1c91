"""What a run is expected to hold at its peak follows its settings and its zone; without room it is refused."""

import pytest
from refused_for_memory import BIG, LARGE, SHAPES, named_in_refusal, needs_a_smaller_model

from understudy.compute import ON_CPU, Compute
from understudy.errors import InputError
from understudy.methods.preference_optimization import method as module
from understudy.methods.preference_optimization import peaks, rate
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig as Config
from understudy.methods.preference_optimization.peaks import check_fits, phases
from understudy.models import room
from understudy.models.loading import load_model
from understudy.models.room import largest
from understudy.models.shape import ModelShape, model_shape

GIB = 2**30
DISTIL = ModelShape(6, 768, 768, 768, 3072, False, 50_257, 81_912_576)
OURS = SHAPES | {"distilbert/distilgpt2": DISTIL}
CHECKS, SEARCH, DOWNSTREAM = (
    "the checks before a charge",
    "the search for a learning rate",
    "the downstream models that measure",
)
CANDIDATES, PREFERENCES, TEXTS, EXPORT = "the candidates", "the preferences", "the texts", "the export"
SERVED = {"endpoint": {"url": "http://here/v1", "model": "policy-{round}"}}
TOKENS = {"sampling": {"max_new_tokens": 256}}


@pytest.fixture(autouse=True)
def shapes(monkeypatch):
    for asked in (peaks, room):
        monkeypatch.setattr(asked, "model_shape", lambda name: OURS.get(name) or model_shape(name))
    monkeypatch.setattr(peaks, "chosen", lambda: ON_CPU)


@pytest.fixture
def machine(monkeypatch):
    return lambda gib: monkeypatch.setattr(room, "device_memory", lambda: int(gib * GIB))


def config(**settings):
    return Config(model="big", **settings)


def predicted(shape=BIG, compute=ON_CPU, zone=None, **settings):
    return phases(config(**settings), shape, compute=compute, zone=zone)


@pytest.mark.parametrize(
    ("phase", "less", "more"),
    [
        (CANDIDATES, {}, {"candidates": {"seeds_per_prompt": 16}}),
        (CANDIDATES, {}, {"candidates": TOKENS}),
        (CANDIDATES, SERVED, {}),
        (TEXTS, {}, {"candidates": {"seed_tokens": 128}}),
        (TEXTS, {}, {"candidates": {"instruction": "word " * 300}}),
        (TEXTS, {}, {"candidates": TOKENS}),
        (TEXTS, SERVED, {}),
        (PREFERENCES, {"preferences": {"batch_size": 1}}, {"preferences": {"batch_size": 2}}),
        (PREFERENCES, {"preferences": {"batch_size": 1}}, {"preferences": {"batch_size": 1}, "candidates": TOKENS}),
        (PREFERENCES, {}, {"preferences": {"lora_rank": 256}}),
        (SEARCH, {}, {"preferences": {"lora_rank": 256}}),
        (DOWNSTREAM, {}, {"profile": "paper"}),
    ],
)
def test_the_prediction_grows_with_each_setting(phase, less, more):
    assert predicted(**less)[phase] < predicted(**more)[phase]


def test_every_phase_grows_with_its_model():
    small, large = predicted(), predicted(LARGE)
    assert small.keys() == {CHECKS, SEARCH, DOWNSTREAM, CANDIDATES, PREFERENCES, TEXTS, EXPORT}
    assert {phase for phase in small if small[phase] < large[phase]} == small.keys() - {DOWNSTREAM}


def test_pairs_that_pass_at_once_follow_what_a_pass_may_take():
    """As training takes them: of a step that does not fit a common divisor of step and round does, or one pair."""
    rounds = [
        {"preferences": {"batch_size": 16}, "candidates": {"prompts": 16}},
        {"preferences": {"batch_size": 16}, "candidates": {"prompts": 17}},
    ]
    whole, one = (predicted(**settings)[PREFERENCES] for settings in rounds)
    assert whole > one


def test_each_zone_counts_what_its_own_steps_load():
    client, server = predicted(zone="client"), predicted(zone="server")
    assert client.keys() == {CHECKS, SEARCH, DOWNSTREAM}
    assert server.keys() == {CANDIDATES, PREFERENCES, TEXTS, EXPORT}
    assert predicted(zone="both").keys() == client.keys() | server.keys()


def test_the_zone_of_the_process_is_meant_where_none_is_named(monkeypatch):
    assert predicted().keys() == predicted(zone="both").keys()
    monkeypatch.setenv("UNDERSTUDY_ZONE", "server")
    assert predicted().keys() == predicted(zone="server").keys()


def test_the_search_holds_the_model_and_its_trained_copy_and_counts_only_where_there_is_one():
    assert predicted()[SEARCH] > 8 * BIG.parameters
    assert SEARCH not in predicted(preferences={"learning_rate": 1e-4})


def test_a_gpu_does_not_hold_what_is_done_on_the_cpu():
    assert predicted().keys() - predicted(compute=Compute("cuda")).keys() == {CHECKS, SEARCH}


def test_a_gpu_does_not_hold_the_file_that_is_exported():
    assert predicted(compute=Compute("cuda"))[EXPORT] == 4 * BIG.parameters < predicted()[EXPORT]


def test_weights_in_bfloat16_take_less():
    narrow = predicted(compute=Compute("cpu", "bfloat16"))
    assert narrow[PREFERENCES] < predicted()[PREFERENCES] - BIG.parameters


def test_a_downstream_model_that_is_not_there_is_left_to_its_own_check(monkeypatch):
    monkeypatch.setitem(OURS, "distilbert/distilgpt2", None)
    assert predicted(profile="paper")[DOWNSTREAM] < predicted()[DOWNSTREAM]


@pytest.mark.parametrize(
    ("gib", "settings", "named"),
    [
        (4, {"candidates": {"sampling": {"max_new_tokens": 400}}}, {"candidates.sampling.max_new_tokens"}),
        (4, {"candidates": {"seeds_per_prompt": 64}}, {"candidates.seeds_per_prompt", "candidates.seed_tokens"}),
        (8, {"profile": "paper", "model": "big", "preferences": {"batch_size": 1, "rejected_rank": 2}}, {"profile"}),
    ],
)
def test_what_a_refusal_names_lowers_the_prediction(machine, gib, settings, named):
    machine(gib)
    assert named <= named_in_refusal(peaks, Config(**{"model": "big"} | settings), gib=gib)


def test_what_no_setting_makes_fit_needs_a_smaller_model(machine):
    machine(16)
    needs_a_smaller_model(peaks, config(), gib=16)


def test_the_defaults_fit_a_small_machine(machine):
    machine(4)
    check_fits(Config())


def test_a_run_is_refused_before_a_model_is_loaded(machine, monkeypatch, tmp_path):
    """Neither for its learning rate nor for its checks: the model alone may take more than there is."""
    monkeypatch.setattr("understudy.models.loading.load_base", lambda *_: pytest.fail("the model was loaded"))
    monkeypatch.setattr(rate, "load_base", lambda *_: pytest.fail("the model was loaded"))
    monkeypatch.setattr(rate, "question_of", lambda *_, **__: {})
    monkeypatch.setattr(rate, "remembered", lambda _, choose, folder: choose())
    machine(0.5)
    with pytest.raises(InputError, match=r"this machine allows 0\.5"):
        rate.chosen_rate(config(), ["a text"], (), kept_in=tmp_path)
    with pytest.raises(InputError, match=r"this machine allows 0\.5"):
        module.check_model(config(), ())


def test_without_noise_the_client_zone_takes_the_servers_steps_too(machine, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_ZONE", "client")
    asked = config(preferences={"learning_rate": 1e-4})
    machine(1)
    check_fits(asked)
    module.queries(asked, n=100, epsilon=8.0, delta=1e-3)
    with pytest.raises(InputError, match=r"this machine allows 1\.0"):
        module.queries(asked, n=100, epsilon=float("inf"), delta=1e-3)


def test_a_dry_run_names_the_largest_phase_and_not_what_this_process_held():
    loaded = load_model("tiny-llama")
    asked = [Config(preferences={"batch_size": 1, "lora_rank": rank}) for rank in (1, 8192)]
    small, large = (module._peak(loaded, one)["expected_peak_memory_mib"] for one in asked)
    of_small, of_large = (largest(phases(one, loaded.shape))[1] / 2**20 for one in asked)
    assert of_large > 2048 + of_small
    # Beside it is what the process holds now, which has held more: of many tests it may be gigabytes.
    assert large - small == pytest.approx(of_large - of_small, abs=64)
