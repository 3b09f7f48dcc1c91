"""What the page about an audit says of the bounds."""

import pytest

from understudy.evaluation.metrics import Metrics
from understudy.reporting.audit import attack_section

NAME = "audit.one_run.data."


@pytest.fixture
def metrics():
    figures = {"guesses": 100.0, "right_guesses": 80.0, "auc": 0.8, "tpr_at_fpr_0_001": 0.1, "tpr_at_fpr_0_01": 0.2}
    bounds = {"": 1.9999, "positive_control.": 2.9999, "null_control.": 0.0}
    values = {f"{NAME}{condition}{name}": value for condition in bounds for name, value in figures.items()}
    values |= {f"{NAME}{condition}epsilon_lower_bound": bound for condition, bound in bounds.items()}
    values |= {"audit.one_run.claimed_epsilon": 2.0, "audit.one_run.canaries": 100.0}
    intervals = {name: (0.0, 1.0) for name in values if name.startswith(NAME) and "bound" not in name}
    return Metrics(values=values | {"audit.one_run.confidence_level": 0.95}, intervals=intervals)


def test_no_bound_is_told_that_was_not_proven(metrics):
    section = attack_section(metrics, "data")
    assert "at least 1.99; it promises at most 2" in section.lead[0]
    assert section.lead[1].endswith("at least 2.99.")
    assert [row[1] for row in section.table.rows] == ["1.99", "2.99", "0.00"]
