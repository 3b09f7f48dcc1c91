"""Differences between groups of runs, paired by seed, with Student's interval worked out by hand."""

import pytest

from understudy.evaluation.metrics import Metrics
from understudy.evaluation.names import describe
from understudy.evaluation.statistics.comparison import MeasuredRun
from understudy.evaluation.statistics.differences import differences

FIGURE = describe("utility.synthetic.accuracy")
NAME = "comparison.a-eps1.minus.b-eps1.utility.synthetic.accuracy"


def runs(group: str, **values: float) -> list[MeasuredRun]:
    return [
        MeasuredRun(group, int(seed.removeprefix("seed_")), Metrics(values={FIGURE.pattern: value}))
        for seed, value in values.items()
    ]


def test_the_difference_is_paired_by_seed():
    measured = [
        *runs("a-eps1", seed_0=0.5, seed_1=0.7, seed_2=0.9),
        *runs("b-eps1", seed_2=0.7, seed_1=0.6, seed_0=0.5),
    ]
    found = differences(measured, [("a-eps1", "b-eps1")], FIGURE)
    # Differences 0, 0.1, 0.2: mean 0.1, deviation 0.1, over root 3, times 4.302653 (two degrees of freedom, 95 %).
    assert found.values == {NAME: pytest.approx(0.1)}
    assert found.intervals[NAME] == pytest.approx((0.1 - 4.302653 * 0.1 / 3**0.5, 0.1 + 4.302653 * 0.1 / 3**0.5))
    assert describe(NAME, found.declared).meaning.startswith("a-eps1 minus b-eps1, mean over 3 seeds. ")


def test_only_seeds_of_both_count_and_one_is_too_few():
    few = [*runs("a-eps1", seed_0=0.5, seed_1=0.7, seed_2=0.1), *runs("b-eps1", seed_1=0.6, seed_0=0.5, seed_5=0.9)]
    found = differences(few, [("a-eps1", "b-eps1")], FIGURE)
    assert found.values[NAME] == pytest.approx(0.05)
    one = [*runs("a-eps1", seed_0=0.5, seed_1=0.7), *runs("b-eps1", seed_1=0.6)]
    assert not differences(one, [("a-eps1", "b-eps1")], FIGURE).values
    assert not differences(one, [("a-eps1", "c-eps1")], FIGURE).values


def test_a_run_that_lacks_the_figure_is_no_pair():
    lacking = MeasuredRun("b-eps1", 1, Metrics())
    measured = [*runs("a-eps1", seed_0=0.5, seed_1=0.7), *runs("b-eps1", seed_0=0.5), lacking]
    assert not differences(measured, [("a-eps1", "b-eps1")], FIGURE).values
