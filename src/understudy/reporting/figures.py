"""The report's own figures, each a pure function of the metrics; None where its figures are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from understudy.evaluation.metrics import Metrics
from understudy.reporting.drawing import (
    MUTED,
    PROMPT,
    REAL,
    SYNTHETIC,
    Drawing,
    Mark,
    dots,
    draw,
    line_of_chance,
    percent_axis,
    say,
)
from understudy.reporting.text_formatting import percent

CONDITION_STYLE = {
    "prompt_only": ("Prompt-only", PROMPT, "D"),
    "synthetic": ("Synthetic", SYNTHETIC, "o"),
    "real": ("Real", REAL, "s"),
}


def marks_of(metrics: Metrics, style: Mapping[str, tuple[str, str, str]], name: str) -> list[Mark]:
    """A mark with its interval for each figure that was measured.

    Args:
        metrics: what was measured.
        style: part of the name -> label, colour and shape, in the order of the marks.
        name: of the figures, with `{}` for the part.
    """
    return [
        Mark(label, metrics.values[full], colour, marker, metrics.intervals.get(full))
        for part, (label, colour, marker) in style.items()
        if (full := name.format(part)) in metrics.values
    ]


def utility_figure(metrics: Metrics) -> Drawing | None:
    """Accuracy on real rows by training set, with intervals; None where the synthetic accuracy is missing."""
    if "utility.synthetic.accuracy" not in metrics.values:
        return None
    marks = marks_of(metrics, CONDITION_STYLE, "utility.{}.accuracy")
    chance = metrics.values.get("utility.majority.accuracy")

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        dots(axes, marks, low=0.0 if chance is None else min(chance, *(m.value for m in marks)), high=1.0)
        if chance is not None:
            line_of_chance(axes, chance)
            axes.annotate(
                "commonest label",
                (chance, 1),
                xycoords=("data", "axes fraction"),
                xytext=(5, 0),
                textcoords="offset points",
                va="bottom",
                color=MUTED,
                fontsize=11,
            )

    return draw(
        "utility",
        title="Accuracy on real test rows, by what the classifier was trained on",
        alt=say(marks),
        height=50 + 44 * len(marks),
        paint=paint,
    )


def fidelity_figure(metrics: Metrics) -> Drawing | None:
    """MAUVE and Frechet distance beside what real text scores against itself; None where they are missing."""
    values = metrics.values
    if "fidelity.mauve" not in values or "fidelity.frechet" not in values:
        return None

    def marks_of(measure: str, reference: str) -> list[Mark]:
        names = {
            "prompt_only": f"fidelity.prompt_only.{measure}",
            "synthetic": f"fidelity.{measure}",
            "real": f"fidelity.{reference}",
        }
        return [
            Mark(label, values[names[condition]], colour, marker)
            for condition, (label, colour, marker) in CONDITION_STYLE.items()
            if names[condition] in values
        ]

    panels = [
        ("MAUVE, higher is closer", marks_of("mauve", "mauve_ceiling"), 1.0, "{:.2f}"),
        ("Fréchet distance, lower is closer", marks_of("frechet", "frechet_floor"), None, "{:.3f}"),
    ]

    def paint(figure: Any) -> None:
        figure.get_layout_engine().set(h_pad=0.14)
        for axes, (heading, marks, high, form) in zip(figure.subplots(2, 1), panels, strict=True):
            top = high if high is not None else 1.15 * max(mark.value for mark in marks) or 1.0
            dots(axes, marks, low=0.0, high=top, form=form)
            axes.set_title(heading, loc="left", fontsize=12, color=MUTED, pad=8)

    alt = "; ".join(f"{heading}: {say(marks, form)}" for heading, marks, _, form in panels)
    return draw("fidelity", title="Closeness to real text never seen", alt=alt, height=350, paint=paint)


def memorization_figure(metrics: Metrics) -> Drawing | None:
    """n-gram overlap with private rows and with a holdout, n = 3..7; None where it is missing."""
    sides = {"synthetic": ("private rows", SYNTHETIC), "holdout": ("rows never seen", REAL)}
    lines: dict[str, list[tuple[int, float]]] = {
        side: [
            (n, metrics.values[name])
            for n in range(1, 10)
            if (name := f"memorization.ngram_{n}.{side}") in metrics.values
        ]
        for side in sides
    }
    if not all(lines.values()):
        return None

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        most = max(s for line in lines.values() for _, s in line)
        digits = 2 if 0 < most < 0.01 else 1  # of small shares one decimal leaves nothing
        for offset, side in ((-0.21, "synthetic"), (0.21, "holdout")):
            label, colour = sides[side]
            style = {"color": colour} if side == "synthetic" else {"facecolor": "none", "edgecolor": colour}
            places = [n + offset for n, _ in lines[side]]
            bars = axes.bar(places, [s for _, s in lines[side]], width=0.36, linewidth=1.5, label=label, **style)
            axes.bar_label(bars, [f"{100 * s:.{digits}f}" for _, s in lines[side]], padding=2, fontsize=10.5)
        axes.set_xticks([n for n, _ in lines["synthetic"]])
        axes.set_ylim(bottom=0, top=1.1 * most or 0.01)
        percent_axis(axes.yaxis)
        axes.yaxis.set_tick_params(labelcolor=MUTED)
        axes.grid(axis="y")
        axes.set_xlabel("words in a row (n)")
        axes.legend(frameon=False, loc="upper right", title="found in", title_fontsize=11, alignment="left")

    said = [
        f"n={n}: {percent(share, 2)} in private rows, {percent(other, 2)} in rows never seen"
        for (n, share), (_, other) in zip(lines["synthetic"], lines["holdout"], strict=True)
    ]
    return draw(
        "memorization",
        title="Share of synthetic word n-grams that stand in real rows",
        alt="; ".join(said),
        height=280,
        paint=paint,
    )


def length_figure(metrics: Metrics) -> Drawing | None:
    """Histogram of words per text, synthetic over real; None where it is missing."""
    histogram = metrics.lengths
    if histogram is None or "synthetic" not in histogram.shares:
        return None
    real = histogram.shares.get("real")

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        axes.stairs(
            histogram.shares["synthetic"],
            histogram.edges,
            fill=True,
            color=SYNTHETIC,
            alpha=0.45,
            label="Synthetic",
        )
        if real is not None:
            axes.stairs(real, histogram.edges, color=REAL, linewidth=2, label="Real")
        percent_axis(axes.yaxis)
        axes.yaxis.set_tick_params(labelcolor=MUTED)
        axes.grid(axis="y")
        axes.set_xlim(histogram.edges[0], histogram.edges[-1])
        axes.set_xlabel("words per text")
        axes.legend(frameon=False, loc="upper right")

    quantiles = {
        who: [metrics.values.get(f"diversity.{prefix}length_q{q}") for q in (5, 50, 95)]
        for who, prefix in (("Synthetic", ""), ("Real", "real."))
    }
    said = [
        f"{who}: half of the texts have at most {middle:.0f} words, nine in ten have {low:.0f} to {high:.0f}"
        for who, (low, middle, high) in quantiles.items()
        if low is not None and middle is not None and high is not None
    ]
    return draw(
        "lengths",
        title="Share of texts by length",
        alt="; ".join(said) or "Histogram of words per text",
        height=240,
        paint=paint,
    )


def label_figure(metrics: Metrics, label_names: Sequence[str] = ()) -> Drawing | None:
    """How often a judge confirms the labels, in all and per label; None where it is missing."""
    values = metrics.values
    if "label_fidelity.synthetic" not in values:
        return None
    marks = [
        Mark(text, values[name], colour, marker)
        for name, text, colour, marker in (
            ("label_fidelity.prompt_only", "Prompt-only", PROMPT, "D"),
            ("label_fidelity.synthetic", "Synthetic, all", SYNTHETIC, "o"),
        )
        if name in values
    ]
    prefix = "label_fidelity.synthetic.label_"
    for index in sorted(int(name.removeprefix(prefix)) for name in values if name.startswith(prefix)):
        shown = label_names[index] if index < len(label_names) else f"label {index}"
        shown = shown if len(shown) <= 18 else f"{shown[:17]}…"
        marks.append(Mark(f"· {shown}", values[f"{prefix}{index}"], SYNTHETIC, "o"))
    if "label_fidelity.real" in values:
        marks.append(Mark("Real", values["label_fidelity.real"], REAL, "s"))

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        dots(axes, marks, low=0.0, high=1.0)

    return draw(
        "labels",
        title="Share of labels that a judge trained on real text confirms",
        alt=say(marks),
        height=40 + 34 * len(marks),
        paint=paint,
    )
