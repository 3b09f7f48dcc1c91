import subprocess
import sys

import pytest
from pydantic import BaseModel, ValidationError

from understudy.errors import InputError
from understudy.methods.gradient_matching.config import FilterConfig, GradientMatchingConfig
from understudy.runs.overrides import apply_overrides


def test_the_paper_profile_is_section_5_1():
    config = GradientMatchingConfig(profile="paper")
    assert config.model == "microsoft/phi-1_5"
    assert config.samples == 100
    assert (config.matching.rounds, config.matching.inner_steps, config.matching.learning_rate) == (30, 50, 0.008)
    assert 0.001 <= config.matching.penalty <= 10
    assert (config.projection.kind, config.projection.k) == ("top_k", 200)
    assert (config.target.kind, config.target.l2_clip_norm, config.target.calibration) == ("head", 1.0, "paper")
    assert config.verbalizer.template == " It was"
    assert config.matching.gradient == "closed_form"


def test_given_fields_win_over_the_profile_field_by_field():
    config = GradientMatchingConfig(profile="paper", target={"kind": "label_rows"}, matching={"rounds": 3})
    assert (config.target.kind, config.target.calibration) == ("label_rows", "paper")
    assert (config.matching.rounds, config.matching.inner_steps) == (3, 50)


@pytest.mark.parametrize("profile", ["tiny", "paper"])
def test_a_config_survives_json(profile):
    config = GradientMatchingConfig(
        profile=profile,
        length="as_in_data",
        verbalizer={"words": {"a": "x"}},
        filter={"examples": {"a": ["one", "two"]}},
    )
    assert GradientMatchingConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(("value", "kind"), [(1, int), (40, int), (1.0, float), (0.25, float)])
def test_keep_lowest_is_a_count_or_a_share_and_stays_what_it_was(value, kind):
    config = FilterConfig(keep_lowest=value)
    again = FilterConfig.model_validate_json(config.model_dump_json())
    assert type(config.keep_lowest) is type(again.keep_lowest) is kind
    assert config.keep_lowest == again.keep_lowest == value


def every_model(model: type[BaseModel]):
    yield model
    for field in model.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from every_model(field.annotation)


def test_every_plain_field_is_described_and_nothing_extra_is_taken():
    models = list(every_model(GradientMatchingConfig))
    assert len(models) == 6
    for model in models:
        assert model.model_config["frozen"]
        assert model.model_config["extra"] == "forbid"
        for name, field in model.model_fields.items():
            nested = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
            assert nested or field.description, f"{model.__name__}.{name}"


def test_overrides_reach_every_level():
    config = apply_overrides(
        GradientMatchingConfig(profile="paper"),
        [
            "matching.rounds=3",
            "length=as_in_data",
            'verbalizer.words={"good": "great"}',
            "filter.keep_lowest=7",
            "target.kind=sketch",
            "projection.instruction=Write: {label}",
        ],
    )
    assert isinstance(config, GradientMatchingConfig)
    assert (config.matching.rounds, config.matching.inner_steps) == (3, 50)
    assert config.length == "as_in_data"
    assert config.verbalizer.words == {"good": "great"}
    assert config.filter.keep_lowest == 7
    assert config.target.kind == "sketch"
    assert config.projection.instruction == "Write: {label}"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("matching.round=3", "no such setting"),
        ("matching.rounds=0", "matching.rounds"),
        ("target.kind=all", "target.kind"),
        ("filter.keep_lowest=0", "filter.keep_lowest"),
        ("filter.keep_lowest=2.5", "filter.keep_lowest"),
        ("length=0", "expected 1 to max_length"),
        ("length=65", "expected 1 to max_length"),
        ("length=mean", "length"),
        ("profile=paper", "--profile"),
    ],
)
def test_wrong_overrides_are_refused_with_what_was_expected(override, message):
    with pytest.raises(InputError, match=message) as refused:
        apply_overrides(GradientMatchingConfig(), [override])
    assert "\n" not in str(refused.value)


def test_what_is_wrong_together_is_refused():
    with pytest.raises(ValidationError, match="max_length=16"):
        GradientMatchingConfig(max_length=16, length=17)
    assert GradientMatchingConfig(max_length=16, length=16).length == 16


def test_config_needs_no_torch():
    code = "import sys, understudy.methods.gradient_matching.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
