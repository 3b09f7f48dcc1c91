"""What does not fit into a machine's memory is refused, with what lowers it."""

import pytest

from understudy.compute import ON_CPU, Compute
from understudy.errors import InputError
from understudy.frozen import Frozen
from understudy.models import room
from understudy.models.loading import load_model
from understudy.models.room import changed, check_fits, check_room, expected_mib, weights_bytes
from understudy.models.shape import ModelShape, model_shape

GIB = 2**30
SHAPE = ModelShape(2, 16, 16, 16, 32, True, 64, 1000)


class Inner(Frozen):
    tokens: int = 9


class Part(Frozen):
    inner: Inner = Inner()
    model: str = "another"
    rows: int = 8
    kind: str = "head"
    other: str | None = "big"
    tokens: int = 4


class Config(Frozen):
    model: str = "some-model"
    length: int = 2
    part: Part = Part()


LOWEST = {"part.rows": 1, "length": 1, "part.kind": "sketch", "part.other": None, "part.tokens": 1}


def phases(config):
    """One phase follows rows and kind, another the length and another model; tokens change nothing."""
    first = config.part.rows * (2 if config.part.kind == "head" else 1) * GIB
    return {"reading": first, "writing": config.length * GIB} | ({"measuring": GIB} if config.part.other else {})


@pytest.fixture
def machine(monkeypatch):
    return lambda gib: monkeypatch.setattr(room, "device_memory", lambda: int(gib * GIB))


def test_a_run_that_fits_is_let_pass(machine):
    machine(16)
    check_room(Config(), phases, LOWEST)


def test_a_run_is_judged_by_the_files_of_its_model_and_let_pass_where_they_do_not_say_its_shape(machine, monkeypatch):
    machine(1)
    shapes = {"some-model": SHAPE, "another-model": None}
    monkeypatch.setattr(room, "model_shape", shapes.__getitem__)

    def of_layers(config, shape):
        return {"reading": config.part.rows * shape.layers * GIB}

    with pytest.raises(InputError, match=r"to need 16\.0 GiB for reading"):
        check_fits(Config(), of_layers, LOWEST)
    check_fits(Config(model="another-model"), of_layers, LOWEST)


def test_a_run_that_does_not_fit_is_refused_with_what_lowers_the_largest_phase(machine):
    machine(15.5)
    with pytest.raises(InputError) as refused:
        check_room(Config(), phases, LOWEST)
    assert str(refused.value) == (
        "model='some-model' is expected to need 16.0 GiB for reading, this machine allows 15.5: lower part.rows=8 or "
        "set part.kind=sketch instead of head, or choose a smaller model"
    )
    machine(0.9)
    with pytest.raises(InputError) as refused:
        check_room(Config(), phases, LOWEST)
    assert str(refused.value).endswith("this machine allows 0.9: choose a smaller model")


def test_a_phase_that_a_setting_leaves_out_is_lowered_by_it(machine):
    machine(1.5)
    with pytest.raises(InputError, match=r"3\.0 GiB for measuring.*: leave out part\.other=big, or choose"):
        check_room(Config(), lambda one: {"measuring": 3 * GIB} if one.part.other else {"reading": GIB}, LOWEST)


def test_a_further_model_and_a_setting_within_a_section_of_a_section_are_named(machine):
    def phases(config):
        return {"answering": (2 * config.part.inner.tokens if config.part.model == "another" else 1) * GIB}

    machine(8)
    with pytest.raises(InputError) as refused:
        check_room(Config(), phases, {"part.inner.tokens": 1, "part.model": "tiny"})
    assert str(refused.value).endswith(
        "8.0: lower part.inner.tokens=9 or choose a smaller model in place of part.model=another, or choose a smaller "
        "model"
    )


def test_settings_are_changed_within_their_sections():
    found = changed(Config(), {"part.rows": 1, "length": 5})
    assert (found.part, found.length, found.model) == (Part(rows=1), 5, "some-model")
    assert changed(Config(), {"part.inner.tokens": 1}).part == Part(inner=Inner(tokens=1))


def test_weights_take_what_their_precision_takes():
    assert weights_bytes(SHAPE, ON_CPU) == 4000
    assert weights_bytes(SHAPE, Compute("cpu", "bfloat16")) == 2000
    assert weights_bytes(SHAPE, Compute("cpu", "bfloat16", 1001)) == 4000


def test_the_peak_of_a_process_has_what_it_holds_beside_the_model(monkeypatch):
    model = load_model("tiny-gpt2").model
    held = sum(p.numel() * p.element_size() for p in model.parameters())
    monkeypatch.setattr(room, "resident_memory", lambda: held + (100 << 20))
    assert expected_mib(model, {"a": 7 << 20, "b": 50 << 20}) == 150


@pytest.mark.parametrize("config", ["[]", "7", "{", '{"n_layer": "two"}'], ids=["list", "number", "broken", "words"])
def test_a_broken_folder_has_no_shape(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 16)
    assert model_shape(tmp_path) is None
