"""What a run is expected to hold at its peak follows its settings and its zone; without room it is refused."""

import pytest
from refused_for_memory import BIG, LARGE, SHAPES, named_in_refusal, needs_a_smaller_model

from understudy.compute import ON_CPU, Compute
from understudy.errors import InputError
from understudy.methods.knowledge_distillation import checks, peaks
from understudy.methods.knowledge_distillation import method as module
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig as Config
from understudy.methods.knowledge_distillation.peaks import check_fits, phases
from understudy.models import room
from understudy.models.shape import model_shape

GIB = 2**30
CHECKS, TRAINING, EXPORT = "the checks before a charge", "the adapter's training", "the export"
MEASURES, JUDGE = "the measures", "the judge that measures"
PAIRS, TUNING, SEED = "the synthetic pairs", "the tuning on the pairs", "the tuning on the seed set"
OF_LARGE = {"professional": {"model": "large"}}
SERVED = {"professional": {"url": "http://here/v1"}}
TOKENS = {"sampling": {"max_new_tokens": 256}}
SEEDED = {"seed": {"pairs": "pairs.csv"}}


@pytest.fixture(autouse=True)
def shapes(monkeypatch):
    for asked in (peaks, room):
        monkeypatch.setattr(asked, "model_shape", lambda name: SHAPES.get(name) or model_shape(name))
    monkeypatch.setattr(peaks, "chosen", lambda: ON_CPU)


@pytest.fixture
def machine(monkeypatch):
    return lambda gib: monkeypatch.setattr(room, "device_memory", lambda: int(gib * GIB))


def config(**settings):
    return Config(model="big", **{"professional": {"model": "big"}} | settings)


def predicted(shape=BIG, compute=ON_CPU, zone=None, **settings):
    return phases(config(**settings), shape, compute=compute, zone=zone)


@pytest.mark.parametrize(
    ("phase", "less", "more"),
    [
        (TRAINING, {}, {"train": {"micro_batch": 32}}),
        (TRAINING, {}, {"train": {"max_length": 512}}),
        (TRAINING, {}, {"lora": {"rank": 64}}),
        (TRAINING, {}, {"lora": {"targets": "all-linear"}}),
        (SEED, SEEDED, SEEDED | {"tune": {"batch_size": 64}}),
        (TUNING, {}, {"tune": {"batch_size": 64}}),
        (TUNING, {}, {"tune": {"max_length": 512}}),
        (TUNING, {}, {"lora": {"targets": "all-linear"}}),
        (PAIRS, {}, {"instructions": {"batch_size": 256}}),
        (PAIRS, {}, {"instructions": {"shots": 16}}),
        (PAIRS, {}, {"instructions": TOKENS}),
        (PAIRS, {}, {"professional": {"model": "big", **TOKENS}}),
        (PAIRS, {}, {"about": "word " * 40}),
        (PAIRS, {}, OF_LARGE),
        (PAIRS, SERVED, {}),
        (JUDGE, {}, OF_LARGE),
        (MEASURES, {"measure": {"win_pairs": 0}}, {"measure": {"win_pairs": 200}, "professional": TOKENS}),
        (CHECKS, {}, OF_LARGE),
    ],
)
def test_the_prediction_grows_with_each_setting(phase, less, more):
    assert predicted(**less)[phase] < predicted(**more)[phase]


def test_every_phase_grows_with_its_model():
    small, large = (predicted(shape, **SEEDED) for shape in (BIG, LARGE))
    assert small.keys() == {CHECKS, TRAINING, EXPORT, MEASURES, JUDGE, PAIRS, TUNING, SEED}
    assert {phase for phase in small if small[phase] < large[phase]} == small.keys() - {JUDGE}


def test_each_zone_counts_what_its_own_steps_load():
    client, server = predicted(zone="client"), predicted(zone="server")
    assert client.keys() == {CHECKS, TRAINING, EXPORT, MEASURES, JUDGE}
    assert server.keys() == {PAIRS, TUNING}
    assert predicted(zone="both").keys() == client.keys() | server.keys()
    assert predicted(zone="client", **OF_LARGE)[CHECKS] == client[CHECKS], "the server checks its own model"


def test_the_zone_of_the_process_is_meant_where_none_is_named(monkeypatch):
    assert predicted().keys() == predicted(zone="both").keys()
    monkeypatch.setenv("UNDERSTUDY_ZONE", "server")
    assert predicted().keys() == predicted(zone="server").keys()


def test_both_models_are_held_while_pairs_are_written():
    beside = predicted(**OF_LARGE)[PAIRS] - predicted(**SERVED)[PAIRS]
    assert beside > 4 * LARGE.parameters


def test_a_served_or_unused_judge_is_not_held():
    assert JUDGE not in predicted(**SERVED)
    assert JUDGE not in predicted(measure={"win_pairs": 0})


def test_a_gpu_does_not_hold_what_is_checked_on_the_cpu():
    assert predicted().keys() - predicted(compute=Compute("cuda")).keys() == {CHECKS}


def test_a_gpu_does_not_hold_the_file_that_is_exported():
    assert predicted(compute=Compute("cuda"))[EXPORT] == 4 * BIG.parameters < predicted()[EXPORT]


def test_weights_in_bfloat16_take_less():
    narrow = predicted(compute=Compute("cpu", "bfloat16"))
    assert narrow[TRAINING] < predicted()[TRAINING] - BIG.parameters


def test_a_professional_model_that_is_not_there_is_left_to_its_own_check():
    assert predicted(professional={"model": "no/such-model"})[PAIRS] < predicted()[PAIRS]


@pytest.mark.parametrize(
    ("gib", "settings", "named"),
    [
        (8, {"train": {"micro_batch": 256}}, {"train.micro_batch", "train.max_length"}),
        (4, {"tune": {"batch_size": 128}}, {"tune.batch_size", "tune.max_length"}),
        (4, {"instructions": {"batch_size": 1024}}, {"instructions.batch_size"}),
        (
            8,
            {"professional": {"model": "big", "sampling": {"max_new_tokens": 4096}}},
            {"professional.sampling.max_new_tokens"},
        ),
        (20, OF_LARGE, {"professional.model"}),
    ],
)
def test_what_a_refusal_names_lowers_the_prediction(machine, gib, settings, named):
    machine(gib)
    assert named <= named_in_refusal(peaks, config(**settings), gib=gib)


def test_what_no_setting_makes_fit_needs_a_smaller_model(machine):
    machine(16)
    needs_a_smaller_model(peaks, config(), gib=16)


def test_the_defaults_fit_a_small_machine(machine):
    machine(2)
    check_fits(Config())


def test_a_run_is_refused_before_a_model_is_loaded(machine, monkeypatch):
    for name in ("load_base", "load_professional"):
        monkeypatch.setattr(checks, name, lambda *_: pytest.fail("a model was loaded"))
    machine(1)
    with pytest.raises(InputError, match=r"this machine allows 1\.0"):
        module.check_model(config(), ())


def test_without_noise_the_client_zone_takes_the_servers_steps_too(machine, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_ZONE", "client")
    asked = config(tune={"batch_size": 512})
    machine(4)
    check_fits(asked)
    module.queries(asked, n=100, epsilon=8.0, delta=1e-3)
    with pytest.raises(InputError, match=f"for {TUNING}, this machine allows 4"):
        module.queries(asked, n=100, epsilon=float("inf"), delta=1e-3)


def test_a_dry_run_names_the_largest_phase_and_not_what_this_process_held():
    small, large = (checks.expected_peak(Config(tune={"batch_size": rows})) for rows in (64, 2048))
    (name,) = small
    more = phases(Config(tune={"batch_size": 2048}), model_shape("tiny-llama"))[TUNING]
    assert large[name] > more >> 20 > 1024 + small[name]
