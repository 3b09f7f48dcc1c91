"""What the report says of preference optimisation; a section whose figures were not measured is left out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from understudy.evaluation.metrics import Metrics
from understudy.reporting.drawing import MUTED, PROMPT, REAL, SYNTHETIC, Drawing, dots, draw, say
from understudy.reporting.figures import marks_of
from understudy.reporting.text_formatting import number, percent, points
from understudy.reporting.view import MethodSections, Section, Table, range_of

_CONDITIONS = {
    "public": ("Nothing (epsilon 0)", MUTED, "^"),
    "prompt_only": ("Prompt-only", PROMPT, "D"),
    "synthetic": ("Synthetic", SYNTHETIC, "o"),
    "real": ("Real", REAL, "s"),
}
_SERIES = {"recovery": "Preferences that hold", "frechet": "Fréchet distance", "medoid_distance": "Distance to medoid"}


def sections(metrics: Metrics, _statement: Mapping[str, Any]) -> MethodSections:
    """The sections of a run, in the place of the accuracy of a classifier."""
    found = (next_token_section(metrics), rounds_section(metrics), cost_section(metrics))
    return MethodSections(first=tuple(section for section in found if section is not None))


def next_token_section(metrics: Metrics) -> Section | None:
    """Next-token accuracy on held-out clients by what a small language model was tuned on."""
    values = metrics.values
    marks = marks_of(metrics, _CONDITIONS, "utility.next_token.{}.accuracy")
    if "utility.next_token.synthetic.accuracy" not in values:
        return None
    lead = [
        "A small language model tuned on the synthetic text predicts "
        f"{percent(values['utility.next_token.synthetic.accuracy'])} of the next tokens of clients that took no part."
    ]
    difference = "utility.next_token.synthetic_minus_prompt_only.accuracy"
    if difference in values:
        between = range_of(metrics, difference, lambda share: points(share, ""))
        lead.append(f"Synthetic minus prompt-only: {points(values[difference])}{between and f' ({between})'}.")
    closed = values.get("utility.next_token.gap_closed")
    if closed is not None:
        lead.append(f"Of the way from no tuning to tuning on real text it goes {percent(closed)}.")

    def paint(figure: Any) -> None:
        ends = [end for mark in marks for end in (mark.interval or (mark.value,))]
        dots(figure.subplots(), marks, low=0.0, high=min(1.0, 1.15 * max(ends)), form="{:.3f}")

    clients, real = (values.get(f"utility.next_token.{name}") for name in ("clients", "real_samples"))
    return Section(
        "next-token",
        "Next-token accuracy",
        tuple(lead),
        draw("next-token", title="Next tokens predicted right", alt=say(marks, "{:.3f}"), height=230, paint=paint),
        note=f"{'' if real is None else f'Real text: {number(real)} samples. '}"
        f"{'' if clients is None else f'Tested on {number(clients)} clients. '}The last weights are tested; "
        "intervals are over clients.",
    )


def rounds_section(metrics: Metrics) -> Section | None:
    """How near the candidates come to held-out samples, round by round, and how many preferences survive."""
    lines = {series: _line(metrics, series) for series in _SERIES}
    recovery, frechet = lines["recovery"], lines["frechet"]
    if not recovery:
        return None
    share = sum(recovery.values()) / len(recovery)
    lead = [f"{percent(share)} of the preferences hold without noise and clipping too; half would be chance."]
    if len(frechet) > 1:
        first, last = frechet[min(frechet)], frechet[max(frechet)]
        lead.append(
            f"The candidates’ Fréchet distance to held-out samples goes from {first:.3f} in round {min(frechet)} to "
            f"{last:.3f} in round {max(frechet)}."
        )
    rows = tuple(
        (str(number_), *(f"{line[number_]:.3f}" if number_ in line else "" for line in lines.values()))
        for number_ in sorted(recovery)
    )
    return Section(
        "rounds",
        "Rounds",
        tuple(lead),
        _rounds_figure(frechet, metrics.values.get("rounds.frechet_floor")),
        Table(("Round", *_SERIES.values()), rows),
        "Both sets are of equal size in every round. Falling spread (distance to the medoid) with falling Fréchet "
        "distance is progress; falling spread alone is collapse.",
    )


def cost_section(metrics: Metrics) -> Section | None:
    """What a client receives, sends and computes in a round, in numbers and in seconds."""
    values = metrics.values
    if "costs.scoring.seconds" not in values:
        return None
    ways = {"download": "Received: embeddings of the candidates", "upload": "Sent: a score of each candidate"}
    rows = [
        (
            words,
            number(values[f"costs.{way}.floats"]),
            f"{values[f'costs.{way}.seconds']:.3g}",
            f"at an assumed {values[f'costs.{way}.mbit_per_second']:g} Mbit/s",
        )
        for way, words in ways.items()
    ]
    scoring = f"{values['costs.scoring.seconds']:.3g}"
    rows.append(("Computed: its scores", "", scoring, "measured, processor time on this machine"))
    lead = (
        f"In one round a client receives {number(values['costs.download.floats'])} numbers and sends "
        f"{number(values['costs.upload.floats'])}.",
    )
    return Section(
        "costs",
        "What a round costs a client",
        lead,
        table=Table(("", "Numbers", "Seconds", "By"), tuple(rows)),
        note="Scoring is timed with a made-up client of one sample, so that no clock runs over private texts. "
        "Embedding a client's own texts, once for all rounds, is not in it.",
    )


def _rounds_figure(frechet: dict[int, float], floor: float | None) -> Drawing | None:
    if not frechet:
        return None

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        axes.plot(list(frechet), list(frechet.values()), color=SYNTHETIC, marker="o", markersize=7, linewidth=2)
        if floor is not None:
            axes.axhline(floor, color=REAL, linewidth=1.5, linestyle=(0, (4, 2)))
        axes.set_ylim(0, 1.2 * max([*frechet.values(), floor or 0.0]))
        axes.set_xticks(list(frechet)[:: max(1, len(frechet) // 6)])
        axes.yaxis.set_tick_params(labelcolor=MUTED)
        axes.locator_params(axis="y", nbins=5)
        axes.grid(axis="y")
        axes.set_xlabel("round (dashed: real to real text)", fontsize=11)

    said = ", ".join(f"{value:.3f} in round {number_}" for number_, value in frechet.items())
    return draw("rounds", title="Fréchet distance to held-out samples", alt=said, height=250, paint=paint)


def _line(metrics: Metrics, series: str) -> dict[int, float]:
    """Round -> value, in order."""
    found = {
        int(match[1]): value
        for name, value in metrics.values.items()
        if (match := re.fullmatch(rf"rounds\.{series}\.round_(\d+)", name))
    }
    return dict(sorted(found.items()))
