import math

import pytest
from pydantic import ValidationError

from understudy.reporting.budget import BudgetUse, budget_bar, budget_of
from understudy.reporting.text_formatting import NARROW_SPACE


def test_parts_fill_the_bar():
    use = BudgetUse(epsilon=8, delta=1e-4, epsilon_before=1.5, delta_before=1e-5, epsilon_run=3, delta_run=1.2e-5)
    bar = budget_bar(use)
    assert [part["share"] for part in bar["parts"]] == [18.75, 37.5, 43.75]
    assert [part["epsilon"] for part in bar["parts"]] == ["1.5", "3", "3.5"]
    assert bar["parts"][2]["delta"].replace(NARROW_SPACE, " ") == "7.8 × 10⁻⁵"


def test_nothing_left_is_zero_not_a_rounding_error():
    use = BudgetUse(epsilon=0.3, delta=1e-5, epsilon_before=0.1, delta_before=0, epsilon_run=0.2, delta_run=1e-5)
    assert 0.3 - 0.1 - 0.2 < 0
    left = budget_bar(use)["parts"][2]
    assert (left["epsilon"], left["delta"], left["share"]) == ("0", "0", 0.0)


def test_spent_is_rounded_up_and_left_down():
    use = BudgetUse(epsilon=10, delta=1e-4, epsilon_before=1.00001, delta_before=0, epsilon_run=0, delta_run=0)
    parts = budget_bar(use)["parts"]
    assert (parts[0]["epsilon"], parts[2]["epsilon"]) == ("1.001", "8.999")


def test_budget_of_a_statement(statement):
    use = budget_of(statement)
    assert (use.epsilon, use.epsilon_before, use.epsilon_run) == (8.0, 1.5, 3.0)
    assert use.delta_before == pytest.approx(1e-5)


def test_a_run_without_promise_spent_nothing(make_statement):
    use = budget_of(make_statement(math.inf))
    assert (use.epsilon_run, use.delta_run, use.epsilon_before) == (0.0, 0.0, 1.5)


@pytest.mark.parametrize("change", [{"budget": None}, {"this_run": "x"}, {"budget": {"epsilon": 8}}])
def test_a_statement_that_does_not_tell(statement, change):
    assert budget_of(statement | change) is None


def test_a_budget_without_bounds_is_refused():
    with pytest.raises(ValidationError):
        BudgetUse(epsilon=0, delta=1e-5, epsilon_before=0, delta_before=0, epsilon_run=0, delta_run=0)
