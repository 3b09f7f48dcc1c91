import pytest
from pydantic import ValidationError

from understudy.errors import InputError
from understudy.evaluation.metric_name import MetricName
from understudy.evaluation.metrics import Histogram, Metrics, merge

ROUNDS = MetricName("rounds.left_{i}", "Rounds left after {i}", "rows", "context")
SPREAD = MetricName("rounds.spread", "Spread", "score", "lower")
HISTOGRAM = Histogram(edges=(0, 1, 2), shares={"kept": (0.5, 0.5)}, counted="losses of the kept texts")


def test_unknown_names_and_values_without_meaning_are_refused():
    with pytest.raises(InputError, match="unknown metric"):
        Metrics(values={"utility.magic": 1.0})
    with pytest.raises(ValueError, match="finite"):
        Metrics(values={"fidelity.mauve": float("nan")})
    with pytest.raises(ValueError, match=r"\['fidelity\.mauve'\]"):
        Metrics(intervals={"fidelity.mauve": (0.1, 0.2)})


def test_merge_joins_and_refuses_doubles():
    one = Metrics(values={"fidelity.mauve": 0.5}, missing=("no holdout",))
    two = Metrics(values={"fidelity.frechet": 0.1}, intervals={"fidelity.frechet": (0, 1)}, missing=("no holdout",))
    both = merge(one, two)
    assert both.values == {"fidelity.mauve": 0.5, "fidelity.frechet": 0.1}
    assert both.intervals == {"fidelity.frechet": (0, 1)}
    assert both.missing == ("no holdout",)
    with pytest.raises(ValueError, match="found twice"):
        merge(one, one)


def test_metrics_survive_json():
    metrics = Metrics(
        values={"fidelity.mauve": 0.5},
        intervals={"fidelity.mauve": (0.4, 0.6)},
        lengths={"edges": (0, 1), "shares": {"real": (1.0,)}},
        histograms={"losses": HISTOGRAM},
        declared=(ROUNDS, SPREAD),
    )
    assert Metrics.model_validate_json(metrics.model_dump_json()) == metrics


def test_a_measurement_declares_the_names_of_its_own():
    found = Metrics(values={"rounds.left_3": 1.0}, declared=(ROUNDS,))
    assert found.values == {"rounds.left_3": 1.0}
    with pytest.raises(InputError, match=r"rounds\.spread.*rounds\.left"):
        Metrics(values={"rounds.spread": 1.0}, declared=(ROUNDS,))


def test_merge_joins_what_is_declared_each_once():
    one = Metrics(values={"rounds.left_1": 1.0}, declared=(ROUNDS,))
    two = Metrics(values={"rounds.left_2": 1.0, "rounds.spread": 0.5}, declared=(ROUNDS, SPREAD))
    assert merge(one, two, Metrics()).declared == (ROUNDS, SPREAD)


@pytest.mark.parametrize("other", [
    MetricName("rounds.spread", "Something else", "score", "lower"),
    MetricName("fidelity.mauve", "Something else", "score", "higher"),
])  # fmt: skip
def test_a_name_has_one_meaning(other):
    with pytest.raises(ValidationError, match=other.pattern):
        Metrics(declared=(SPREAD, other))


def test_histograms_are_joined_and_none_is_measured_twice():
    one, two = Metrics(histograms={"losses": HISTOGRAM}), Metrics(histograms={"distances": HISTOGRAM})
    assert set(merge(one, two).histograms) == {"losses", "distances"}
    with pytest.raises(ValueError, match=r"found twice.*losses"):
        merge(one, one)


@pytest.mark.parametrize("shares", [(0.5,), (0.5, float("nan")), (0.2, 0.3, 0.5)])
def test_a_histogram_has_one_finite_share_per_bin(shares):
    with pytest.raises(ValidationError, match="found 3 edges"):
        Histogram(edges=(0, 1, 2), shares={"kept": shares}, counted="losses")
