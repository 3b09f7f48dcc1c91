"""What the flow of an audit itself does with what an attack found."""

import traceback

import pytest

from understudy.artifacts.access import write_json
from understudy.errors import TaskFailed
from understudy.privacy import labels
from understudy.tasks.auditing import caught

FIGURES = {"epsilon": 0.5, "guesses": 4, "right": 3, "auc": 0.7, "auc_interval": [0.5, 0.9], "rates": []}


def found(home, **changed):
    return write_json({"data": FIGURES | changed}, kind="attack", label=labels.private("ward"))


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_an_attack_is_caught_that_proves_an_epsilon(epsilon, home):
    assert caught(found(home, epsilon=epsilon)) is (epsilon > 0)


def test_an_error_about_figures_tells_prefect_none_of_them(home):
    """Figures of an earlier version, say: pydantic shows the value that it did not expect."""
    with pytest.raises(TaskFailed) as failed:
        caught(found(home, auc=[13 / 16]))
    assert "0.8125" not in "".join(traceback.format_exception(failed.value))
