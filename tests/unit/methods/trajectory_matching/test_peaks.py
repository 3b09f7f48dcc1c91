"""What a run is expected to hold at its peak follows its settings, and a run that has no room is refused."""

import pytest
from refused_for_memory import BIG, LARGE, SHAPES, named_in_refusal, needs_a_smaller_model

from understudy.compute import ON_CPU, Compute
from understudy.errors import InputError
from understudy.methods.trajectory_matching import method as module
from understudy.methods.trajectory_matching import peaks
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig as Config
from understudy.methods.trajectory_matching.peaks import check_fits, phases
from understudy.models import room
from understudy.models.shape import model_shape

GIB = 2**30
CHECKS, EXPERTS, CARRIERS = "the checks before a run", "the experts", "the written carriers"
SELECTION, DISTILLATION, TUNING = "the selection of rows", "the distillation", "the tuning that measures"
PRIVATE, WRITTEN, LESS = {"experts": {"private": True}}, {"carrier": "written"}, {"selection": {"strategy": "less"}}


@pytest.fixture(autouse=True)
def shapes(monkeypatch):
    for asked in (peaks, room):
        monkeypatch.setattr(asked, "model_shape", lambda name: SHAPES.get(name) or model_shape(name))
    monkeypatch.setattr(peaks, "chosen", lambda: ON_CPU)


@pytest.fixture
def machine(monkeypatch):
    return lambda gib: monkeypatch.setattr(room, "device_memory", lambda: int(gib * GIB))


def config(distil=None, **settings):
    return Config(model="big", distil={"micro_batch": 8} | (distil or {}), **settings)


def predicted(shape=BIG, compute=ON_CPU, **settings):
    return phases(config(**settings), shape, compute=compute)


@pytest.mark.parametrize(
    ("phase", "less", "more"),
    [
        (EXPERTS, {}, {"experts": {"batch_size": 32}}),
        (EXPERTS, {}, {"experts": {"lora_rank": 64}}),
        (EXPERTS, {}, {"max_length": 128}),
        (EXPERTS, PRIVATE, {"experts": {"private": True, "micro_batch": 32}}),
        (EXPERTS, PRIVATE, {"experts": {"private": True, "lora_rank": 64}}),
        (EXPERTS, PRIVATE, PRIVATE | {"max_length": 128}),
        (CARRIERS, WRITTEN, WRITTEN | {"max_length": 128}),
        (SELECTION, LESS, LESS | {"experts": {"batch_size": 32}}),
        (SELECTION, LESS, LESS | {"max_length": 128}),
        (SELECTION, LESS, LESS | {"experts": {"lora_rank": 64}}),
        (SELECTION, LESS, {"selection": {"strategy": "less", "model": "large"}}),
        (DISTILLATION, {"distil": {"micro_batch": 2}}, {}),
        (DISTILLATION, {}, {"max_length": 128}),
        (DISTILLATION, {}, {"distil": {"tokens": 8}}),
        (DISTILLATION, {}, {"distil": {"inner_steps": 20}}),
        (DISTILLATION, {}, {"experts": {"count": 8}}),
        (DISTILLATION, {}, {"experts": {"epochs": 30}}),
        (DISTILLATION, {}, {"experts": {"lora_rank": 64}}),
        (TUNING, {"tuning": {"batch_size": 4}}, {"tuning": {"batch_size": 64}}),
        (TUNING, {}, {"max_length": 128}),
        (TUNING, {}, {"tuning": {"transfer": "large"}}),
        (CHECKS, {}, {"tuning": {"transfer": "large"}}),
        (CHECKS, {}, LESS | {"selection": {"strategy": "less", "model": "large"}}),
        (CHECKS, {}, PRIVATE),
    ],
)
def test_the_prediction_grows_with_each_setting(phase, less, more):
    assert predicted(**less)[phase] < predicted(**more)[phase]


def test_every_phase_grows_with_the_model():
    small, large = (predicted(shape, **WRITTEN, **LESS) for shape in (BIG, LARGE))
    assert all(small[phase] < large[phase] for phase in small)
    assert small.keys() == {CHECKS, EXPERTS, CARRIERS, SELECTION, DISTILLATION, TUNING}


def test_phases_that_a_run_leaves_out_are_not_predicted():
    assert predicted().keys() == {CHECKS, EXPERTS, DISTILLATION, TUNING}


def test_experts_in_processes_of_their_own_take_their_memory_each(monkeypatch):
    one = predicted()[EXPERTS]
    monkeypatch.setenv("UNDERSTUDY_PROCESSES", "8")
    assert predicted()[EXPERTS] == 2 * one, "there are two experts"
    assert predicted(compute=Compute("cuda"))[EXPERTS] == one


def test_a_gpu_does_not_hold_what_is_checked_on_the_cpu():
    assert predicted().keys() - predicted(compute=Compute("cuda")).keys() == {CHECKS}


def test_weights_in_bfloat16_take_less():
    assert predicted(compute=Compute("cpu", "bfloat16"))[EXPERTS] < predicted()[EXPERTS] - BIG.parameters


@pytest.mark.parametrize(
    ("gib", "settings", "named"),
    [
        (8, {}, {"distil.micro_batch", "max_length"}),
        (8, {"distil": {"micro_batch": 1}, "experts": {"batch_size": 512}}, {"experts.batch_size", "max_length"}),
        (
            8,
            {"distil": {"micro_batch": 1}, **PRIVATE, "experts": {"private": True, "micro_batch": 512}},
            {"max_length"},
        ),
        (8, {"distil": {"micro_batch": 1}, "tuning": {"batch_size": 512}}, {"tuning.batch_size"}),
        (16, {"tuning": {"transfer": "large"}}, {"tuning.transfer"}),
        (16, {"selection": {"strategy": "less", "model": "large"}}, {"selection.model"}),
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
    check_fits(Config(distil={"micro_batch": 8}))
    check_fits(Config(distil={"micro_batch": 8}, experts={"private": True}, carrier="written"))


def test_a_run_is_refused_before_a_model_is_loaded(machine, monkeypatch):
    from understudy.methods.trajectory_matching import preparation

    for name in ("load_base", "load_model"):
        monkeypatch.setattr(preparation, name, lambda *_: pytest.fail("a model was loaded"))
    machine(16)
    with pytest.raises(InputError, match=r"leave out tuning\.transfer=large"):
        module.check_model(config(tuning={"transfer": "large"}), ())


def test_a_further_model_that_is_not_there_is_left_to_its_own_check():
    assert predicted(tuning={"transfer": "no/such-model"})[TUNING] == predicted()[TUNING]
