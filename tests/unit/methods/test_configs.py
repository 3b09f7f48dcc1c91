"""What holds of the settings of every method: they are described, survive JSON, and wrong ones are named."""

import subprocess
import sys

import pytest
from pydantic import BaseModel

from understudy.errors import InputError
from understudy.frozen import DigestOf, NotInKeys, not_in_keys
from understudy.methods import registry
from understudy.runs.overrides import apply_overrides

CONFIGS = {name: registry.get(name).config for name in registry.BUILT_IN}
GIVEN = {
    "conditional-generation": {"class_sizes": {"a": 3, "b": 4}},
    "gradient-matching": {
        "length": "as_in_data",
        "verbalizer": {"words": {"a": "x"}},
        "filter": {"examples": {"a": ["one", "two"]}},
    },
    "trajectory-matching": {"carrier": "public", "distil": {"tokens": 5}, "tuning": {"transfer": "tiny-gpt2"}},
    "knowledge-distillation": {"filters": {"threshold": 0.5}, "lora": {"targets": ["q_proj"]}},
    "preference-optimization": {"rounds": 3, "scoring": {"aggregation": "masked"}},
}


def every_model(model: type[BaseModel]):
    yield model
    for field in model.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from every_model(field.annotation)


@pytest.mark.parametrize("method", CONFIGS)
def test_every_plain_field_is_described_and_nothing_extra_is_taken(method):
    models = list(every_model(CONFIGS[method]))
    assert len(models) > 4
    for model in models:
        assert model.model_config["frozen"]
        assert model.model_config["extra"] == "forbid"
        for name, field in model.model_fields.items():
            nested = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
            assert nested or field.description, f"{model.__name__}.{name}"


@pytest.mark.parametrize("method", CONFIGS)
def test_what_has_a_digest_counts_by_it(method):
    """Else a run on a table or a model in another place would be another run, with a charge of its own."""
    for model in every_model(CONFIGS[method]):
        for name, field in model.model_fields.items():
            if not name.endswith("digest"):
                continue
            (mark,) = [mark for mark in field.metadata if isinstance(mark, DigestOf)]
            assert mark.field in model.model_fields, f"{model.__name__}.{name}"
            plain = model()
            assert plain.model_copy(update={name: "4f2a"}) != plain
            assert not_in_keys(plain.model_copy(update={name: ""})).get(mark.field) is None
            assert not_in_keys(plain.model_copy(update={name: "4f2a"}))[mark.field] is True


PATIENCE = {"checkpoint_every": 7, "timeout_seconds": 5.0, "requests_per_minute": 3}


@pytest.mark.parametrize("method", CONFIGS)
def test_what_changes_no_byte_changes_no_charge(method):
    """An endpoint that did not answer said to wait longer for it; the run that did was charged a second time."""
    for model in every_model(CONFIGS[method]):
        marked = {
            name for name, field in model.model_fields.items() if any(isinstance(m, NotInKeys) for m in field.metadata)
        }
        assert marked == PATIENCE.keys() & model.model_fields.keys()
        plain = model()
        other = plain.model_copy(update={name: PATIENCE[name] for name in marked})
        assert (plain == other) is (not marked)
        assert plain.model_dump_json(exclude=not_in_keys(plain)) == other.model_dump_json(exclude=not_in_keys(other))


@pytest.mark.parametrize("profile", ["tiny", "paper"])
@pytest.mark.parametrize("method", CONFIGS)
def test_a_config_survives_json(method, profile):
    config = CONFIGS[method](profile=profile, **GIVEN[method])
    assert CONFIGS[method].model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize("change", [{"model": "other"}, {"model_digest": "f" * 64}, {"public_seed": 7}])
@pytest.mark.parametrize("method", CONFIGS)
def test_rows_that_meet_another_model_or_seed_are_charged_anew(method, change):
    """A model that changes in its folder keeps its name: its files tell, and the old charge's noise is not for it."""
    chosen = registry.get(method)
    config = chosen.config(**GIVEN[method])
    if chosen.charge.by_epsilon is not None:
        config = chosen.charge.by_epsilon(config, True)
    assert chosen.charge.settings(config.model_copy(update=change)) != chosen.charge.settings(config)


# Method -> wrong setting -> what the refusal must name.
WRONG = {
    "conditional-generation": {
        "train.epochs": "section.key=value",
        "train.epoch=3": "train.epoch",
        "trian.epochs=3": "trian",
        "train=3": "train",
        "train.epochs=0": "train.epochs",
        "train.epochs=many": "many",
        "update=both": "update",
        "profile=paper": "--profile",
        "model.name=x": "model.name",
    },
    "gradient-matching": {
        "matching.round=3": "matching.round",
        "matching.rounds=0": "matching.rounds",
        "target.kind=all": "target.kind",
        "filter.keep_lowest=0": "filter.keep_lowest",
        "filter.keep_lowest=2.5": "filter.keep_lowest",
        "length=0": "max_length",
        "length=65": "max_length",
        "length=mean": "length",
    },
    "knowledge-distillation": {"tune.step=3": "tune.step", "instructions.draws=0.5": "instructions.draws"},
    "preference-optimization": {"candidates.prompt=3": "candidates.prompt", "rounds=0": "rounds"},
}


@pytest.mark.parametrize(
    ("method", "setting", "named"),
    [(method, setting, named) for method, wrong in WRONG.items() for setting, named in wrong.items()],
)
def test_a_wrong_setting_is_named_in_one_line(method, setting, named):
    with pytest.raises(InputError) as refused:
        apply_overrides(CONFIGS[method](), [setting])
    assert named in str(refused.value)
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("method", "setting", "told"),
    [
        ("gradient-matching", "length=abc", ["--set length='abc'", "valid integer", "'as_in_data'"]),
        ("gradient-matching", "verbalizer.words=x", ["--set verbalizer.words='x'", "dictionary", "'auto'"]),
        ("conditional-generation", "class_sizes=foo", ["--set class_sizes='foo'", "'balanced'", "dictionary"]),
        ("conditional-generation", 'class_sizes={"a": -1}', ["--set class_sizes.a=-1", "greater"]),
        ("conditional-generation", "train.l2_clip_norm=-1", ["--set train.l2_clip_norm=-1", "greater", "'auto'"]),
    ],
)
def test_a_setting_of_several_types_is_told_by_its_own_name_with_all_that_it_may_be(method, setting, told):
    with pytest.raises(InputError) as refused:
        apply_overrides(CONFIGS[method](), [setting])
    assert [words for words in told if words not in str(refused.value)] == []


@pytest.mark.parametrize(
    "module", ["understudy.generation.config", *(config.__module__ for config in CONFIGS.values())]
)
def test_settings_need_no_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("method", "override", "said"),
    [
        ("conditional-generation", "train.epochs.x=3", "train.epochs has no parts; expected --set train.epochs=VALUE"),
        ("conditional-generation", "train.epoch=3", "no such setting; expected one of .*epochs"),
        ("conditional-generation", "training.epochs=3", "no such setting; expected one of about, .*train, "),
        ("gradient-matching", "verbalizer.words.a=x", "verbalizer.words has no parts"),
    ],
)
def test_a_setting_that_there_is_not_is_answered_with_what_there_is_at_its_place(method, override, said):
    with pytest.raises(InputError, match=said):
        apply_overrides(CONFIGS[method](), [override])
