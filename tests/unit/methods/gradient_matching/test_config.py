import pytest
from pydantic import ValidationError

from understudy.methods.gradient_matching.config import FilterConfig, GradientMatchingConfig
from understudy.methods.gradient_matching.method import charged_settings
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


@pytest.mark.parametrize(("value", "kind"), [(1, int), (40, int), (1.0, float), (0.25, float)])
def test_keep_lowest_is_a_count_or_a_share_and_stays_what_it_was(value, kind):
    config = FilterConfig(keep_lowest=value)
    again = FilterConfig.model_validate_json(config.model_dump_json())
    assert type(config.keep_lowest) is type(again.keep_lowest) is kind
    assert config.keep_lowest == again.keep_lowest == value


@pytest.mark.parametrize(("kind", "read"), [("sketch", True), ("head", False), ("label_rows", False)])
def test_the_size_of_a_sketch_is_charged_where_there_is_one(kind, read):
    one, other = (
        charged_settings(GradientMatchingConfig(target={"kind": kind, "sketch_dimension": size})) for size in (8, 16)
    )
    assert (one != other) == read


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


def test_what_is_wrong_together_is_refused():
    with pytest.raises(ValidationError, match="max_length=16"):
        GradientMatchingConfig(max_length=16, length=17)
    assert GradientMatchingConfig(max_length=16, length=16).length == 16
