"""Names, histograms and config that gradient matching adds."""

import pytest
from pydantic import ValidationError

from understudy.errors import InputError
from understudy.evaluation import names
from understudy.evaluation.config import MatchingEvaluationConfig
from understudy.evaluation.metrics import Histogram, Metrics, merge
from understudy.methods.gradient_matching.filters import Reason

HISTOGRAM = Histogram(edges=(0, 1, 2), shares={"kept": (0.5, 0.5)})


@pytest.mark.parametrize(
    "name",
    [
        "utility.transfer.tiny-gpt2.synthetic.accuracy",
        "utility.transfer.opt-1-3b.real.accuracy",
        "matching.gradient_error.step_50",
        "matching.gradient_error.real.step_0",
        "matching.loss.median",
        "matching.dropped.wrong_label",
        "audit.mia.advantage",
        "audit.mia.positive_control.auc",
        "memorization.nearest_median.holdout",
        "fidelity.few_real.train_frechet",
        "language_model.log_perplexity.prompt_only",
    ],
)
def test_the_promised_names_exist(name):
    assert names.describe(name).pattern == name
    assert "{" not in names.describe(name).meaning


@pytest.mark.parametrize(
    "name",
    ["utility.transfer.a.b.synthetic.accuracy", "utility.transfer..synthetic.accuracy", "matching.dropped.dull",
     "utility.transfer.-a.synthetic.accuracy", "matching.gradient_error.step_050", "audit.mia.negative.auc"],
)  # fmt: skip
def test_names_that_look_like_them_are_refused(name):
    with pytest.raises(InputError, match="unknown metric"):
        names.check_names([name])


def test_number_and_model_are_filled_into_the_meaning():
    assert "tiny-gpt2 fine-tuned" in names.describe("utility.transfer.tiny-gpt2.real.accuracy").meaning
    assert "after 50 steps" in names.describe("matching.gradient_error.step_50").meaning


@pytest.mark.parametrize(
    ("model", "short"),
    [("tiny-gpt2", "tiny-gpt2"), ("facebook/opt-1.3b", "opt-1-3b"), ("/models/my model/", "my-model"),
     ("...", "model"), ("a" * 99, "a" * 64)],
)  # fmt: skip
def test_short_names_fit_the_names(model, short):
    assert names.short_name(model) == short
    names.check_names([f"utility.transfer.{short}.synthetic.accuracy"])


def test_every_reason_of_the_filters_has_a_name():
    assert {*Reason.__args__, "surplus"} == set(names.DROP_REASONS)


def test_histograms_are_checked_kept_and_joined():
    found = Metrics(histograms={"matching.loss": HISTOGRAM})
    assert Metrics.model_validate_json(found.model_dump_json()) == found
    other = Metrics(histograms={"memorization.nearest": HISTOGRAM})
    assert set(merge(found, other).histograms) == {"matching.loss", "memorization.nearest"}
    with pytest.raises(ValueError, match=r"found twice: \['matching\.loss'\]"):
        merge(found, found)
    with pytest.raises(ValidationError, match="expected histograms among"):
        Metrics(histograms={"matching.losses": HISTOGRAM})


@pytest.mark.parametrize("shares", [(0.5,), (0.5, float("nan")), (0.2, 0.3, 0.5)])
def test_a_histogram_has_one_finite_share_per_bin(shares):
    with pytest.raises(ValidationError, match="one finite share per bin"):
        Histogram(edges=(0, 1, 2), shares={"kept": shares})


def test_profiles_and_what_is_given():
    paper, tiny = MatchingEvaluationConfig(), MatchingEvaluationConfig(profile="tiny", steps=7)
    assert (paper.steps, paper.batch_size, paper.learning_rate, paper.measure_every) == (200, 16, 7e-6, 50)
    assert (paper.frozen_lower_layers, paper.transfer_models) == (0, ())
    assert (tiny.steps, tiny.batch_size) == (7, 8)
    assert set(tiny.transfer_models) == {"tiny-llama", "tiny-gpt2"}
    with pytest.raises(ValidationError):
        MatchingEvaluationConfig(real_rows=1)
