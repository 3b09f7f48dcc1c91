"""What a run is expected to hold at its peak follows its settings, and a run that has no room is refused."""

import re

import pytest

from understudy.compute import ON_CPU, Compute
from understudy.errors import InputError
from understudy.methods.gradient_matching import method as module
from understudy.methods.gradient_matching.config import GradientMatchingConfig as Config
from understudy.methods.gradient_matching.memory import LOWEST, check_fits, phases
from understudy.models import room
from understudy.models.room import changed, largest
from understudy.models.shape import ModelShape, model_shape

GIB = 2**30
# Of 135 million and of 1.3 billion parameters.
BIG = ModelShape(30, 576, 576, 192, 1536, True, 49_152, 134_515_008)
LARGE = ModelShape(24, 2048, 2048, 2048, 8192, False, 50_272, 1_315_758_080)
LABELS = ("bad", "good")
RELEASE, MATCHING, TUNING = "the released gradient", "the matching", "the models fine-tuned to measure"


def predicted(shape=BIG, compute=ON_CPU, labels=2, **settings):
    return phases(Config(**settings), shape, labels, compute=compute)


@pytest.fixture
def machine(monkeypatch):
    """Give the machine so many GiB, and the base model a shape."""
    from understudy.methods.gradient_matching import memory

    def limited(gib, shape=BIG):
        monkeypatch.setattr(room, "device_memory", lambda: int(gib * GIB))
        monkeypatch.setattr(memory, "chosen", lambda: ON_CPU)
        for asked in (memory, room):
            monkeypatch.setattr(asked, "model_shape", lambda name: shape if name == "tiny-llama" else model_shape(name))

    return limited


@pytest.mark.parametrize(
    ("phase", "less", "more"),
    [
        (RELEASE, {}, {"target": {"micro_batch": 64}}),
        (RELEASE, {}, {"max_length": 512}),
        (RELEASE, {}, {"target": {"sketch_dimension": 4096}}),
        (RELEASE, {"target": {"kind": "label_rows"}}, {}),
        (RELEASE, {}, {"target": {"kind": "head"}}),
        (RELEASE, {"target": {"kind": "head"}}, {"matching": {"gradient": "full"}}),
        (MATCHING, {}, {"matching": {"batch_size": 64, "shard_size": 64}}),
        (MATCHING, {"matching": {"shard_size": 8}}, {}),
        (MATCHING, {"samples": 4}, {}),
        (MATCHING, {}, {"length": 40}),
        (MATCHING, {"length": 40}, {"length": "as_in_data"}),
        (MATCHING, {"matching": {"swap_sweeps": 0}}, {}),
        (MATCHING, {}, {"target": {"kind": "head"}}),
        (MATCHING, {"length": 1}, {"length": 1, "projection": {"k": 4000}}),
        (MATCHING, {"target": {"kind": "head"}}, {"matching": {"gradient": "full"}}),
        (TUNING, {}, {"profile": "paper"}),
        (TUNING, {"profile": "paper", "max_length": 32, "length": 1}, {"profile": "paper"}),
    ],
)
def test_the_prediction_grows_with_each_setting(phase, less, more):
    assert predicted(**less)[phase] < predicted(**more)[phase]


def test_every_phase_grows_with_the_model_and_targets_with_the_labels():
    small, large = predicted(), predicted(shape=LARGE)
    assert {phase for phase in small if small[phase] < large[phase]} == small.keys() - {"the classifier that measures"}
    assert predicted(labels=9, target={"kind": "head"})[RELEASE] > predicted(target={"kind": "head"})[RELEASE]


def test_weights_in_bfloat16_take_less():
    narrow = Compute("cpu", "bfloat16")
    assert predicted(compute=narrow)[MATCHING] < predicted()[MATCHING] - BIG.parameters


def test_a_gpu_does_not_hold_what_is_checked_on_the_cpu():
    assert predicted().keys() - predicted(compute=Compute("cuda")).keys() == {"the checks before a charge"}


def test_the_classifier_counts_where_the_profile_measures_with_it():
    phase = "the classifier that measures"
    assert predicted()[phase] == 0 < predicted(profile="paper")[phase]


def test_models_tuned_one_after_the_other_are_held_together():
    """Two that were tuned, the third with its gradients and moments, the run's own: seven times the weights.

    With the gradients of those that were tuned it would be nine times.
    """
    found = predicted(profile="paper", max_length=1, length=1)[TUNING]
    assert 7 * 4 * BIG.parameters < found < 9 * 4 * BIG.parameters


@pytest.mark.parametrize(
    ("gib", "settings", "named"),
    [
        (8, {"matching": {"batch_size": 512, "shard_size": 512}, "samples": 600}, {"matching.batch_size", "length"}),
        (8, {"target": {"micro_batch": 20_000}}, {"target.micro_batch"}),
        (8, {"matching": {"gradient": "full"}}, {"matching.batch_size", "matching.gradient"}),
        (4, {"target": {"kind": "head"}, "samples": 600, "matching": {"batch_size": 32}}, set()),
    ],
)
def test_what_a_refusal_names_lowers_the_prediction(machine, gib, settings, named):
    config = Config(**settings)
    expected = phases(config, BIG, 2, compute=ON_CPU)
    phase, peak = largest(expected)
    machine(gib)
    if peak <= gib * GIB:
        assert not named
        check_fits(config, LABELS)
        return
    with pytest.raises(InputError, match=f"{peak / GIB:.1f} GiB for {phase}, this machine allows {gib}.0") as refused:
        check_fits(config, LABELS)
    found = set(re.findall(r"(?:lower|set|leave out) ([a-z_.]+)=", str(refused.value)))
    assert named <= found
    for setting in found:
        assert phases(changed(config, {setting: LOWEST[setting]}), BIG, 2, compute=ON_CPU)[phase] < peak


def test_what_no_setting_makes_fit_needs_a_smaller_model(machine):
    machine(16, LARGE)
    with pytest.raises(InputError, match=r"this machine allows 16\.0: choose a smaller model$"):
        check_fits(Config(profile="paper", model="tiny-llama"), LABELS)


def test_the_defaults_fit_a_small_machine(machine):
    machine(2, model_shape("tiny-llama"))
    check_fits(Config(), LABELS)
    check_fits(Config(profile="paper", model="tiny-llama"), LABELS)


def test_a_run_is_refused_before_its_model_is_loaded(machine, monkeypatch, tmp_path):
    """Neither for its words nor for its checks: the model alone may take more than there is."""
    monkeypatch.setattr("understudy.models.loading.load_base", lambda *_: pytest.fail("the model was loaded"))
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path))
    machine(0.1)
    with pytest.raises(InputError, match=r"this machine allows 0\.1"):
        module.check_model(Config(), LABELS)
    with pytest.raises(InputError, match=r"this machine allows 0\.1"):
        module.resolve(Config(), 10, LABELS)
