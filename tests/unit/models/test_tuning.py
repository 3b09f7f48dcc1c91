"""Normal fine-tuning: the cosine ends where it should, and every pass over the rows has an order of its own."""

import pytest

from understudy.models.tuning import Steps


def plan(**given):
    return Steps(
        **{"steps": 11, "batch_size": 3, "learning_rate": 5e-5, "final_learning_rate": 1e-6, "seed": 0, **given}
    )


def test_the_rate_goes_by_a_cosine_from_the_first_step_to_the_last():
    rates = [plan().learning_rate_at(step) for step in range(11)]
    assert (rates[0], rates[-1]) == (pytest.approx(5e-5), pytest.approx(1e-6))
    assert rates[5] == pytest.approx((5e-5 + 1e-6) / 2)
    assert rates == sorted(rates, reverse=True)
    assert plan(steps=1).learning_rate_at(0) == 5e-5


def test_every_pass_takes_each_row_once_in_an_order_of_its_own():
    taken = [row for step in range(10) for row in plan().rows_at(step, 10).tolist()]
    passes = [taken[start : start + 10] for start in range(0, 30, 10)]
    assert all(sorted(one) == list(range(10)) for one in passes)
    assert len({tuple(one) for one in passes}) == 3
    assert [plan(seed=1).rows_at(step, 10).tolist() for step in range(3)] != [taken[i : i + 3] for i in (0, 3, 6)]
