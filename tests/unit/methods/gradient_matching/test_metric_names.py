"""The names that gradient matching declares, and the settings of its evaluation."""

import pytest
from pydantic import ValidationError

from understudy.errors import InputError
from understudy.evaluation import names
from understudy.methods.gradient_matching.evaluation_config import MatchingEvaluationConfig
from understudy.methods.gradient_matching.filters import Reason
from understudy.methods.gradient_matching.metric_names import DROP_REASONS, METRIC_NAMES


@pytest.mark.parametrize(
    "name",
    [
        "matching.gradient_error.step_50",
        "matching.gradient_error.real.step_0",
        "matching.loss.median",
        "matching.dropped.wrong_label",
        "fidelity.few_real.train_frechet",
    ],
)
def test_the_promised_names_exist(name):
    found = names.describe(name, METRIC_NAMES)
    assert found.pattern == name
    assert "{" not in found.meaning
    with pytest.raises(InputError, match="unknown metric"):
        names.describe(name)


@pytest.mark.parametrize("name", ["matching.dropped.dull", "matching.gradient_error.step_050", "matching.loss"])
def test_names_that_look_like_them_are_refused(name):
    with pytest.raises(InputError, match="unknown metric"):
        names.check_names([name], METRIC_NAMES)


def test_the_number_is_filled_into_the_meaning():
    assert "after 50 steps" in names.describe("matching.gradient_error.step_50", METRIC_NAMES).meaning


def test_every_reason_of_the_filters_has_a_name():
    assert {*Reason.__args__, "surplus"} == set(DROP_REASONS)


def test_profiles_and_what_is_given():
    paper, tiny = MatchingEvaluationConfig(), MatchingEvaluationConfig(profile="tiny", steps=7)
    assert (paper.steps, paper.batch_size, paper.learning_rate, paper.measure_every) == (200, 16, 7e-6, 50)
    assert (paper.frozen_share, paper.transfer_models) == (0, ())
    assert (tiny.steps, tiny.batch_size) == (7, 8)
    assert set(tiny.transfer_models) == {"tiny-llama", "tiny-gpt2"}
    with pytest.raises(ValidationError):
        MatchingEvaluationConfig(real_rows=1)
