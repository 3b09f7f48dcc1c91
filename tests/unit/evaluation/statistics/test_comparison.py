"""Means over seeds, their intervals and spreads, under names that a program finds again."""

import pytest

from understudy.evaluation.metric_name import MetricName
from understudy.evaluation.metrics import Metrics
from understudy.evaluation.statistics.comparison import MeasuredRun, baselines_of, compared, figures_of, headline_of

ACCURACY = "utility.synthetic.accuracy"


def run(group: str, seed: int, value: float, interval: tuple[float, float] | None = None, **further: float):
    values = {ACCURACY: value, **{name.replace("__", "."): figure for name, figure in further.items()}}
    return MeasuredRun(group, seed, Metrics(values=values, intervals={ACCURACY: interval} if interval else {}))


def test_means_spreads_and_intervals_are_those_worked_out_by_hand():
    found = compared(
        [run("a-eps1", 0, 0.5, (0.4, 0.7)), run("a-eps1", 3, 0.7, (0.6, 0.8)), run("a-eps0_5", 0, 0.6, (0.5, 0.7))]
    )
    assert found.values == pytest.approx(
        {
            "comparison.a-eps1.seeds": 2,
            "comparison.a-eps1.utility.synthetic.accuracy": 0.6,
            # Deviations of 0.1 on both sides, one degree of freedom.
            "comparison.a-eps1.utility.synthetic.accuracy.spread": 0.02**0.5,
            "comparison.a-eps1.seed_0.utility.synthetic.accuracy": 0.5,
            "comparison.a-eps1.seed_3.utility.synthetic.accuracy": 0.7,
            "comparison.a-eps0_5.seeds": 1,
            "comparison.a-eps0_5.utility.synthetic.accuracy": 0.6,
            "comparison.a-eps0_5.seed_0.utility.synthetic.accuracy": 0.6,
        }
    )
    assert found.intervals["comparison.a-eps1.utility.synthetic.accuracy"] == pytest.approx((0.5, 0.75))
    assert found.intervals["comparison.a-eps0_5.utility.synthetic.accuracy"] == (0.5, 0.7)


def test_no_mean_is_of_fewer_seeds_than_it_says_and_no_interval_of_fewer_runs():
    found = compared([run("a-eps1", 0, 0.5, (0.4, 0.7), fidelity__mauve=0.5), run("a-eps1", 1, 0.7)])
    assert "comparison.a-eps1.fidelity.mauve" not in found.values
    assert found.values["comparison.a-eps1.seed_0.fidelity.mauve"] == 0.5
    assert "comparison.a-eps1.utility.synthetic.accuracy" not in found.intervals


def test_two_runs_of_one_seed_are_refused():
    with pytest.raises(ValueError, match="one run per seed"):
        compared([run("a-eps1", 0, 0.5), run("a-eps1", 0, 0.7)])


def test_figures_of_a_methods_own_are_compared_where_more_or_less_is_better():
    own = (MetricName("wins.mine", "Wins", "share", "higher"), MetricName("wins.pairs", "Pairs", "rows", "context"))
    one = MeasuredRun("a-eps1", 0, Metrics(values={"wins.mine": 0.5, "wins.pairs": 4}, declared=own))
    other = run("b-eps1", 0, 0.5, utility__real__accuracy=0.9, diversity__distinct_2=0.5, cut__train__texts=3)
    assert [figure.pattern for figure in figures_of([one])] == ["wins.mine"]
    assert headline_of(figures_of([one])) == "wins.mine"
    both = [figure.pattern for figure in figures_of([one, other])]
    assert both == [ACCURACY, "wins.mine", "utility.real.accuracy"]
    assert headline_of(figures_of([one, other])) == ACCURACY
    assert headline_of(()) == ""


def test_baselines_of_a_figure_without_an_arm_are_none():
    assert baselines_of("fidelity.mauve") == ()
    assert baselines_of(ACCURACY) == ("utility.prompt_only.accuracy", "utility.real.accuracy")
