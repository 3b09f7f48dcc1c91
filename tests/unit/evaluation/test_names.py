import pytest

from understudy.errors import InputError
from understudy.evaluation import names


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
    ],
)
def test_the_promised_names_exist(name):
    assert names.describe(name).pattern == name


@pytest.mark.parametrize(
    "name",
    ["", "utility", "utility.synthetic.accuracy ", "utilityXsynthetic.accuracy", "memorization.ngram_.synthetic",
     "memorization.ngram_05.synthetic", "memorization.ngram_5.private", "Fidelity.mauve"],
)  # fmt: skip
def test_unknown_names_are_refused(name):
    with pytest.raises(InputError, match="unknown metric"):
        names.check_names(["fidelity.mauve", name])


def test_numbers_are_filled_into_the_meaning():
    assert "5-grams" in names.describe("memorization.ngram_5.synthetic").meaning


def test_patterns_are_distinct_and_every_metric_is_described():
    patterns = [metric.pattern for metric in names.METRICS]
    assert len(set(patterns)) == len(patterns)
    assert all(metric.meaning and metric.unit for metric in names.METRICS)
