import pytest

from understudy.errors import InputError
from understudy.evaluation import common_metrics, names


@pytest.mark.parametrize(
    "name",
    [
        "utility.synthetic.accuracy",
        "utility.real.accuracy",
        "utility.prompt_only.accuracy",
        "utility.probe.synthetic.accuracy",
        "utility.transformer.real.accuracy",
        "fidelity.mauve",
        "fidelity.frechet",
        "fidelity.frechet_floor",
        "diversity.distinct_2",
        "memorization.ngram_5.synthetic",
        "memorization.ngram_5.holdout",
        "label_fidelity.synthetic",
        "label_fidelity.synthetic.label_3",
        "utility.transfer.tiny-gpt2.synthetic.accuracy",
        "utility.transfer.opt-1-3b.real.accuracy",
        "utility.next_token.public.accuracy",
        "audit.mia.advantage",
        "audit.mia.positive_control.auc",
        "memorization.nearest_median.holdout",
        "language_model.log_perplexity.prompt_only",
    ],
)
def test_the_promised_names_exist(name):
    assert names.describe(name).pattern == name


@pytest.mark.parametrize(
    "name",
    ["", "utility", "utility.synthetic.accuracy ", "utilityXsynthetic.accuracy", "memorization.ngram_.synthetic",
     "memorization.ngram_05.synthetic", "memorization.ngram_5.private", "Fidelity.mauve",
     "utility.transfer.a.b.synthetic.accuracy", "utility.transfer..synthetic.accuracy",
     "utility.transfer.-a.synthetic.accuracy", "audit.mia.negative.auc"],
)  # fmt: skip
def test_unknown_names_are_refused(name):
    with pytest.raises(InputError, match="unknown metric"):
        names.check_names(["fidelity.mauve", name])


@pytest.mark.parametrize(
    ("model", "short"),
    [("tiny-gpt2", "tiny-gpt2"), ("facebook/opt-1.3b", "opt-1-3b"), ("/models/my model/", "my-model"),
     ("...", "model"), ("a" * 99, "a" * 64)],
)  # fmt: skip
def test_short_names_fit_the_names(model, short):
    assert names.short_name(model) == short
    names.check_names([f"utility.transfer.{short}.synthetic.accuracy"])


def test_numbers_and_models_are_filled_into_the_meaning():
    assert "tiny-gpt2 fine-tuned" in names.describe("utility.transfer.tiny-gpt2.real.accuracy").meaning
    assert "5-grams" in names.describe("memorization.ngram_5.synthetic").meaning


def test_patterns_are_distinct_and_every_metric_is_described():
    patterns = [metric.pattern for metric in common_metrics.METRICS]
    assert len(set(patterns)) == len(patterns)
    assert all(metric.meaning and metric.unit for metric in common_metrics.METRICS)
