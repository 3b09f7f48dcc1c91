from xml.etree import ElementTree

import pytest

from understudy.evaluation.metrics import Metrics
from understudy.reporting import figures

ALL = (
    figures.utility_figure,
    figures.fidelity_figure,
    figures.memorization_figure,
    figures.length_figure,
    figures.label_figure,
)


def texts(drawing):
    return [element.text for element in ElementTree.fromstring(drawing.svg).iter("text")]


@pytest.mark.parametrize("figure", ALL)
def test_without_figures_there_is_no_drawing(figure):
    assert figure(Metrics()) is None


def test_keys_differ_and_alternatives_carry_numbers(metrics):
    drawings = [figure(metrics) for figure in ALL]
    assert len({drawing.key for drawing in drawings}) == 5
    assert all(any(c.isdigit() for c in drawing.alt) for drawing in drawings)


def test_utility_shows_the_three_arms_in_order_with_their_values(metrics):
    drawing = figures.utility_figure(metrics)
    shown = texts(drawing)
    assert [t for t in shown if t in {"Prompt-only", "Synthetic", "Real"}] == ["Real", "Synthetic", "Prompt-only"]
    assert {"61.2\u202f%", "70.8\u202f%", "76.4\u202f%", "commonest label"} <= set(shown)
    assert "67.8\u202f% to 73.8\u202f%" in drawing.alt


def test_a_lone_synthetic_accuracy_is_drawn_without_the_others():
    drawing = figures.utility_figure(Metrics(values={"utility.synthetic.accuracy": 0.7}))
    assert "Synthetic" in texts(drawing)
    assert "Real" not in texts(drawing)


@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_extreme_accuracies_are_drawn(accuracy):
    metrics = Metrics(
        values={"utility.synthetic.accuracy": accuracy, "utility.majority.accuracy": 1.0},
        intervals={"utility.synthetic.accuracy": (accuracy, accuracy)},
    )
    assert f"{100 * accuracy:.1f}\u202f%" in texts(figures.utility_figure(metrics))


def bar_heights(drawing):
    """Heights in figure units of the filled and the outlined bars, left to right, from the rectangles' paths."""
    heights = {"synthetic": [], "real": []}
    for path in ElementTree.fromstring(drawing.svg).iter("path"):
        style = path.get("style", "")
        numbers = (
            [float(x) for x in path.get("d", "").replace("M", " ").replace("L", " ").replace("z", " ").split()]
            if path.get("d") and set(path.get("d")) <= set("MLz .-0123456789")
            else []
        )
        if path.get("clip-path") and len(numbers) >= 8 and "fill: none; stroke: var(--grid)" not in style:
            side = "synthetic" if "fill: var(--synthetic)" in style else "real"
            heights[side].append(max(numbers[1::2]) - min(numbers[1::2]))
    return heights


def test_memorization_bars_are_as_high_as_their_shares(metrics):
    drawing = figures.memorization_figure(metrics)
    heights = bar_heights(drawing)
    for side, name in (("synthetic", "synthetic"), ("real", "holdout")):
        shares = [metrics.values[f"memorization.ngram_{n}.{name}"] for n in range(3, 8)]
        assert len(heights[side]) == 5
        scale = heights[side][0] / shares[0]
        assert heights[side] == pytest.approx([share * scale for share in shares], abs=0.01)
    assert {"21.4", "20.9", "private rows", "rows never seen"} <= set(texts(drawing))
    assert "n=5: 2.10\u202f% in private rows, 1.92\u202f% in rows never seen" in drawing.alt


def test_no_overlap_at_all_is_drawn():
    values = {f"memorization.ngram_{n}.{side}": 0.0 for n in range(3, 8) for side in ("synthetic", "holdout")}
    assert texts(figures.memorization_figure(Metrics(values=values))).count("0.0") == 10


def test_label_names_are_shown_shortened_and_missing_ones_numbered(metrics):
    shown = texts(figures.label_figure(metrics, ["a very long label name indeed"]))
    assert "· a very long label…" in shown
    assert "· label 1" in shown


def test_small_overlaps_are_told_apart_from_each_other_and_from_none():
    """Three ticks read 0.0 %, and the bars of 0.02 % and of none alike."""
    shares = {3: 0.0005, 4: 0.0002, 5: 0.0}
    values = {
        f"memorization.ngram_{n}.{side}": share for n, share in shares.items() for side in ("synthetic", "holdout")
    }
    shown = texts(figures.memorization_figure(Metrics(values=values)))
    assert [shown.count(bar) for bar in ("0.05", "0.02", "0.00")] == [2, 2, 2]
    ticks = [text for text in shown if text and text.endswith("%")]
    assert len(ticks) == len(set(ticks)) >= 3
