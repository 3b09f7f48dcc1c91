"""The sentences a report opens with."""

from dataclasses import replace

import pytest

from understudy.evaluation.metric_name import MetricName
from understudy.evaluation.metrics import Metrics
from understudy.reporting.report import About, build_report, rebuild_report
from understudy.reporting.text_formatting import MINUS, NARROW_SPACE
from understudy.reporting.view import Beside, Headline
from understudy.reporting.worth import completeness_of, worth


def measured(low: float, high: float, **more: float) -> Metrics:
    """An accuracy beside prompt-only text, with the interval of the difference."""
    difference = "utility.synthetic_minus_prompt_only.accuracy"
    values = {"utility.synthetic.accuracy": 0.8, difference: (low + high) / 2, **more}
    return Metrics(values=values, intervals={difference: (low, high), "utility.synthetic.accuracy": (0.75, 0.85)})


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.01, 0.09, "The private rows helped"),
        (-0.01, 0.09, "No difference from text without private rows could be measured"),
        (-0.09, -0.01, "Worse than text without private rows"),
    ],
)
def test_the_interval_decides_and_not_the_sign(low, high, verdict):
    sentence = worth(measured(low, high))
    assert sentence.startswith(f"{verdict}: ")
    assert f"80.0{NARROW_SPACE}%" in sentence
    assert "(75.0 to 85.0)" in sentence
    assert f"({100 * low:+.1f} to {100 * high:+.1f})".replace("-", MINUS) in sentence
    assert sentence.count(".") - sentence.count(".0") == 1, "one sentence"


def test_real_text_stands_beside_it_with_or_without_an_interval():
    difference = "utility.synthetic_minus_real.accuracy"
    assert f"{MINUS}7.0 points beside real text" in worth(measured(0.1, 0.2, **{difference: -0.07}))
    assert f"real text gives 91.0{NARROW_SPACE}%" in worth(measured(0.1, 0.2, **{"utility.real.accuracy": 0.91}))


def test_every_label_counts_alike_where_a_common_one_would_decide():
    recall = {"utility.synthetic.mean_recall": 0.6, "utility.prompt_only.mean_recall": 0.55}
    difference = "utility.synthetic_minus_prompt_only.mean_recall"
    by_accuracy = measured(0.01, 0.09)
    skewed = by_accuracy.model_copy(
        update={
            "values": by_accuracy.values | recall | {difference: 0.05},
            "intervals": by_accuracy.intervals | {difference: (-0.02, 0.12)},
        }
    )
    sentence = worth(skewed)
    assert sentence.startswith("No difference from text without private rows could be measured: ")
    assert f"60.0{NARROW_SPACE}% of real rows it never saw, every label counted alike" in sentence
    assert f"+5.0 points beside prompt-only text ({MINUS}2.0 to +12.0)" in sentence
    even = by_accuracy.model_copy(update={"values": by_accuracy.values | {"utility.synthetic.mean_recall": 0.8}})
    assert worth(even) == worth(by_accuracy)


def test_next_tokens_are_said_where_there_is_no_classifier():
    values = {"utility.next_token.synthetic.accuracy": 0.31, "utility.next_token.prompt_only.accuracy": 0.3}
    assert worth(Metrics(values=values)) == (
        f"A small language model tuned on the synthetic text predicts 31.0{NARROW_SPACE}% of the next tokens of "
        f"clients that took no part, prompt-only text gives 30.0{NARROW_SPACE}%."
    )
    assert worth(Metrics(values={})) == ""


LOSS = Headline(
    "rounds.loss",
    "the loss of the model is {}",
    (Beside("rounds.public.loss", "rounds.loss_minus_public", "that of the public model"),),
    rival="the same rounds without private rows",
)
NATS = tuple(MetricName(name, "A loss", "nats per token", "lower") for name in ("rounds.loss", "rounds.public.loss"))
DECLARED = (*NATS, MetricName("rounds.loss_minus_public", "Their difference", "nats per token", "lower"))


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.3, -0.1, "The private rows helped"),
        (-0.3, 0.1, "No difference from the same rounds without private rows could be measured"),
        (0.1, 0.3, "Worse than the same rounds without private rows"),
    ],
)
def test_a_method_s_own_figure_is_said_in_its_unit_and_less_may_be_better(low, high, verdict):
    middle = (low + high) / 2
    found = Metrics(
        values={"rounds.loss": 2.5, "rounds.loss_minus_public": middle},
        intervals={"rounds.loss": (2.4, 2.6), "rounds.loss_minus_public": (low, high)},
        declared=DECLARED,
    )
    difference, between = f"{middle:+.3f}", f"{low:+.3f} to {high:+.3f}"
    assert worth(found, [LOSS]) == (
        f"{verdict}: the loss of the model is 2.500 nats per token (2.400 to 2.600), "
        + f"{difference} beside that of the public model ({between}).".replace("-", MINUS)
    )


def test_of_a_method_s_figures_the_first_that_was_measured_comes_before_the_common_ones():
    alone = Metrics(values={"rounds.loss": 2.5, "rounds.public.loss": 2.7}, declared=DECLARED)
    assert worth(alone, [LOSS]) == (
        "The loss of the model is 2.500 nats per token, that of the public model gives 2.700 nats per token."
    )
    both = Metrics(values=alone.values | {"utility.synthetic.accuracy": 0.8}, declared=DECLARED)
    other = replace(LOSS, figure="rounds.share")
    assert worth(both, [other, LOSS]) == worth(alone, [LOSS])
    assert worth(both, [other]) == worth(both)
    assert worth(Metrics(values={}), [LOSS]) == ""


@pytest.mark.parametrize(
    ("labels", "shortfall", "said", "lacking"),
    [
        (["a", "b"], {"a": 0, "b": 0}, "", ()),
        (["a", "b"], {"b": 3}, "3 of 5 rows are missing (b 3).", ()),
        (["a"], {"a": 1, "b": 2}, "3 of 4 rows are missing (a 1, b 2); no row at all for b.", ("b",)),
        ([None], {"": 2}, "2 of 3 rows are missing (all 2).", ()),
        ([], {"": 2}, "2 of 2 rows are missing (all 2); no row at all for all.", ("all",)),
    ],
)
def test_what_is_missing_is_counted_by_label(labels, shortfall, said, lacking):
    found = completeness_of(labels, shortfall)
    assert (found.in_words(), found.lacking, found.rows) == (said, lacking, len(labels))


def test_both_sentences_stand_above_everything_else_and_survive_a_rebuild(tmp_path):
    about = About(completeness=completeness_of(["a"], {"b": 2}))
    files = build_report(tmp_path, title="T", metrics=measured(0.01, 0.09), statement={}, about=about)
    page = files.html.read_text()
    order = [page.index(words) for words in ("2 of 3 rows are missing", "The private rows helped", "Privacy guarantee")]
    assert order == sorted(order)
    rebuild_report(tmp_path, {}.get)
    assert files.html.read_text() == page
