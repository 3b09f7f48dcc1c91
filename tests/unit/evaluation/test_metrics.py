import pytest

from understudy.errors import InputError
from understudy.evaluation.metrics import Metrics, merge


def test_unknown_names_and_values_without_meaning_are_refused():
    with pytest.raises(InputError, match="unknown metric"):
        Metrics(values={"utility.magic": 1.0})
    with pytest.raises(ValueError, match="finite"):
        Metrics(values={"fidelity.mauve": float("nan")})
    with pytest.raises(ValueError, match="intervals of measured values"):
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
    )
    assert Metrics.model_validate_json(metrics.model_dump_json()) == metrics
