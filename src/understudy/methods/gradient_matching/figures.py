"""Figures of gradient matching, each a pure function of the metrics; None where its figures are missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from understudy.evaluation.audit_metrics import MIA_CONDITIONS
from understudy.evaluation.metrics import Metrics
from understudy.reporting.drawing import (
    MUTED,
    PROMPT,
    REAL,
    SYNTHETIC,
    Drawing,
    Mark,
    beside_chance,
    dots,
    draw,
    line_of_chance,
    percent_axis,
    say,
)
from understudy.reporting.figures import CONDITION_STYLE, marks_of

_DASHES = (0, (4, 2))
# Name of a set -> legend, and how it is drawn: filled, or a line whose dashes tell it from the others without colour.
_LOSS_STYLE: dict[str, tuple[str, dict[str, Any]]] = {
    "kept": ("kept", {"fill": True, "color": SYNTHETIC, "alpha": 0.45}),
    "dropped": ("dropped", {"color": MUTED, "linewidth": 1.5, "linestyle": _DASHES}),
    "prompt_only": ("prompt-only", {"color": PROMPT, "linewidth": 2}),
}
_NEAREST_STYLE: dict[str, tuple[str, dict[str, Any]]] = {
    "synthetic": ("synthetic", {"fill": True, "color": SYNTHETIC, "alpha": 0.45}),
    "holdout": ("real rows never seen", {"color": REAL, "linewidth": 2}),
}
_ERROR_SIDES = {"prompt_only": "prompt_only.", "synthetic": "", "real": "real."}
_MIA_STYLE = {
    "null_control.": ("Null control", PROMPT, "D"),
    "": ("Synthetic", SYNTHETIC, "o"),
    "positive_control.": ("Positive control", REAL, "s"),
}


def loss_figure(metrics: Metrics) -> Drawing | None:
    """Matching losses of kept, dropped and prompt-only texts."""
    medians = {"kept": "median", "dropped": "dropped_median", "prompt_only": "prompt_only_median"}
    return _histogram(
        metrics,
        _LOSS_STYLE,
        {name: f"matching.loss.{tail}" for name, tail in medians.items()},
        of="matching.loss",
        key="matching",
        title="Share of texts by matching loss",
        across="1 − cosine to the target of the label",
    )


def nearest_figure(metrics: Metrics) -> Drawing | None:
    """Distances to the nearest private row."""
    return _histogram(
        metrics,
        _NEAREST_STYLE,
        {side: f"memorization.nearest_median.{side}" for side in _NEAREST_STYLE},
        of="memorization.nearest",
        key="nearest",
        title="Share of texts by distance to the nearest private row",
        across="L2 distance of sentence embeddings",
    )


def transfer_figure(metrics: Metrics) -> Drawing | None:
    """Accuracy of every fine-tuned target model, by what it was tuned on."""
    models = transfer_models(metrics)
    if not models:
        return None
    panels = {model: _transfer_marks(metrics, model) for model in models}
    chance = metrics.values.get("utility.majority.accuracy")
    ends = [end for marks in panels.values() for mark in marks for end in (mark.value, *(mark.interval or ()))]
    low = min([*ends, *(() if chance is None else (chance,))])  # one scale for all panels

    def paint(figure: Any) -> None:
        figure.get_layout_engine().set(h_pad=0.14)
        for axes, (model, marks) in zip(
            figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels.items(), strict=True
        ):
            dots(axes, marks, low=low, high=1.0)
            if chance is not None:
                line_of_chance(axes, chance)
            axes.set_title(model if len(model) <= 40 else f"{model[:39]}…", loc="left", fontsize=12, color=MUTED, pad=8)
        if chance is not None:
            axes.set_xlabel("dashed: always the commonest label", fontsize=11)

    return draw(
        "transfer",
        title="Accuracy on real test rows of target models, by what they were fine-tuned on",
        alt="; ".join(f"{model}: {say(marks)}" for model, marks in panels.items()),
        height=20 + sum(60 + 36 * len(marks) for marks in panels.values()),
        paint=paint,
    )


def error_figure(metrics: Metrics) -> Drawing | None:
    """Gradient error along fine-tuning on synthetic text."""
    lines = {condition: line for condition, side in _ERROR_SIDES.items() if (line := error_line(metrics, side))}
    if "synthetic" not in lines:
        return None
    full = error_line(metrics, "full.")

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        for condition, line in lines.items():
            label, colour, marker = CONDITION_STYLE[condition]
            label = {"real": "other real rows"}.get(condition, label.lower())
            axes.plot(*zip(*line, strict=True), color=colour, marker=marker, markersize=7, linewidth=2, label=label)
        if full:
            axes.plot(*zip(*full, strict=True), color=SYNTHETIC, linestyle=_DASHES, label="synthetic, all weights")
        axes.axhline(1, color=MUTED, linewidth=1, linestyle=(0, (3, 3)), zorder=1)
        top = max(1.0, *(value for line in (*lines.values(), full) for _, value in line))
        axes.set_ylim(0, 1.5 * top)  # room for the legend above the lines
        axes.yaxis.set_tick_params(labelcolor=MUTED)
        axes.locator_params(axis="both", nbins=5, integer=False)
        axes.set_xticks([step for step, _ in lines["synthetic"]][:: max(1, len(lines["synthetic"]) // 5)])
        axes.grid(axis="y")
        axes.set_xlabel("steps of fine-tuning on synthetic text (dashed: no gradient)", fontsize=11)
        axes.legend(frameon=False, loc="upper right", ncols=1 if full else 2, fontsize=11)

    said = [
        f"{condition.replace('_', '-')}: " + ", ".join(f"{value:.2f} after {step} steps" for step, value in line)
        for condition, line in lines.items()
    ]
    return draw(
        "gradient-error",
        title="Distance of the mean head gradient from real rows’, over the latter’s norm",
        alt="; ".join(said),
        height=270,
        paint=paint,
    )


def membership_figure(metrics: Metrics) -> Drawing | None:
    """Advantage of the loss attack between its controls; None unless all three were measured."""
    marks = marks_of(metrics, _MIA_STYLE, "audit.mia.{}advantage")
    if len(marks) < len(MIA_CONDITIONS):
        return None
    title, across = "Membership inference: true minus false positive rate", "advantage: 0 is guessing, 1 is certainty"
    return beside_chance("membership", marks, title=title, across=across, chance=0.0, form="{:+.2f}")


def transfer_models(metrics: Metrics) -> list[str]:
    """Target models whose synthetic condition was measured."""
    found = (re.fullmatch(r"utility\.transfer\.([^.]+)\.synthetic\.accuracy", name) for name in metrics.values)
    return [match.group(1) for match in found if match]


def error_line(metrics: Metrics, side: str) -> list[tuple[int, float]]:
    """(steps, error) of one side, by steps."""
    prefix = f"matching.gradient_error.{side}step_"
    found = ((name.removeprefix(prefix), x) for name, x in metrics.values.items() if name.startswith(prefix))
    return sorted((int(step), value) for step, value in found)


def _transfer_marks(metrics: Metrics, model: str) -> list[Mark]:
    return marks_of(metrics, CONDITION_STYLE, f"utility.transfer.{model}.{{}}.accuracy")


def _histogram(
    metrics: Metrics,
    style: Mapping[str, tuple[str, dict[str, Any]]],
    medians: Mapping[str, str],
    *,
    of: str,
    key: str,
    title: str,
    across: str,
) -> Drawing | None:
    """Shares of several sets over common bins.

    Args:
        metrics: what was measured.
        style: name of a set -> legend, and how it is drawn.
        medians: name of a set -> name of its median, which is said in words.
        of: name of the histogram.
        key: of the drawing.
        title: of the figure.
        across: what the bins are of.
    """
    histogram = metrics.histograms.get(of)
    if histogram is None or not histogram.shares:
        return None

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        for name, (label, looks) in style.items():
            if name in histogram.shares:
                axes.stairs(histogram.shares[name], histogram.edges, label=label, **looks)
        percent_axis(axes.yaxis)
        axes.set_ylim(0, 1.3 * max(max(shares) for shares in histogram.shares.values()))
        axes.yaxis.set_tick_params(labelcolor=MUTED)
        axes.grid(axis="y")
        axes.set_xlim(histogram.edges[0], histogram.edges[-1])
        axes.locator_params(axis="x", nbins=6)
        axes.set_xlabel(across)
        axes.legend(frameon=False, loc="upper right")

    said = [
        f"{style[name][0]} median {metrics.values[full]:.3f}"
        for name, full in medians.items()
        if full in metrics.values
    ]
    return draw(key, title=title, alt=", ".join(said) or across, height=250, paint=paint)
