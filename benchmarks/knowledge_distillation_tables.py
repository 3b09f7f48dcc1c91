"""Tables of the benchmark of knowledge distillation: a row per condition, differences on the same held-out pairs."""

from __future__ import annotations

from typing import Any

import cells
import numpy as np
from knowledge_distillation_data import Cell
from tables import Row, interval_text

from understudy.evaluation.answers.answer_set import macro_f1
from understudy.evaluation.statistics.intervals import Interval
from understudy.evaluation.statistics.paired import mean_difference, mean_interval

CONDITIONS = (
    "base",
    "professional",
    "dp_only",
    "distilled",
    "dp_instruct",
    "dp_gene",
    "non_private",
    "self_instruct",
    "icl",
)
ALL_CONDITIONS = (*CONDITIONS, "public_only", "together", "unranked", "self_instruct_icl", "dp_instruct_icl")
PRIVATE = ("icl", "self_instruct_icl", "dp_instruct_icl", "non_private")


def of_condition(found: dict[Cell, cells.Value], data: str, condition: str) -> dict[int, cells.Value]:
    """Cells of a condition by seed."""
    return {cell.seed: value for cell, value in found.items() if (cell.data, cell.condition) == (data, condition)}


def level(own: dict[int, cells.Value], key: str) -> str:
    """The mean over held-out pairs, each the mean over seeds."""
    return spoken(mean_interval(np.mean([value[key] for value in own.values()], axis=0), seed=0))


def difference(first: dict[int, cells.Value], second: dict[int, cells.Value], key: str) -> str:
    """The mean of first minus second over held-out pairs, each the mean over the seeds of both; empty without any."""
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return ""
    sides = [np.mean([side[seed][key] for seed in seeds], axis=0) for side in (first, second)]
    return spoken(mean_difference(sides[0], sides[1], seed=0))


def f1_difference(first: dict[int, cells.Value], second: dict[int, cells.Value]) -> str:
    """Macro F1 of first minus second, the mean over seeds, paired over held-out pairs; empty without answers."""
    seeds = sorted(
        seed for seed in first.keys() & second.keys() if all("given" in side[seed] for side in (first, second))
    )
    if not seeds:
        return ""
    sides = [
        [tuple(np.array(side[seed][key]) for key in ("given", "right")) for seed in seeds] for side in (first, second)
    ]

    def between(rows: Any) -> float:
        means = [np.mean([macro_f1(given[rows], right[rows]) for given, right in side]) for side in sides]
        return float(means[0] - means[1])

    every = np.arange(len(sides[0][0][0]))
    drawn = np.random.default_rng(0).integers(len(every), size=(2000, len(every)))
    low, high = np.quantile([between(rows) for rows in drawn], [0.025, 0.975])
    return spoken(Interval(between(every), float(low), float(high)))


def spoken(found: Interval) -> str:
    """As tables print it."""
    return interval_text((found.value, found.low, found.high))


def rows_of(found: dict[Cell, cells.Value], data: str) -> list[Row]:
    """One row per condition: means over seeds, and differences on the same held-out pairs."""
    rows = []
    for condition in ALL_CONDITIONS:
        own = of_condition(found, data, condition)
        if not own:
            continue
        row = {"condition": f"{condition} (private)" if condition in PRIVATE else condition, "seeds": str(len(own))}
        row["loss"] = level(own, "losses")
        beside = {other: of_condition(found, data, other) for other in ("dp_instruct", "dp_only") if other != condition}
        for other, theirs in beside.items():
            # Lower losses are better, so the difference is theirs minus ours.
            row[f"loss below {other}'s by"] = difference(theirs, own, "losses")
        if data == "financial_phrasebank":
            row["accuracy"] = level(own, "correct")
            for other, theirs in beside.items():
                row[f"accuracy above {other}'s by"] = difference(own, theirs, "correct")
            row["macro F1"] = f"{np.mean([value['macro_f1'] for value in own.values()]):.3f}"
            for other, theirs in beside.items():
                row[f"macro F1 above {other}'s by"] = f1_difference(own, theirs)
            row["unparsed"] = f"{np.mean([value['unparsed'] for value in own.values()]):.1f}"
        row["pairs"] = (
            "" if "made" not in next(iter(own.values())) else f"{np.mean([v['made'] for v in own.values()]):.0f}"
        )
        near = [value for value in own.values() if "mauve" in value]
        for key, title in (("mauve", "MAUVE"), ("mauve_ceiling", "of real pairs")):
            row[title] = f"{np.mean([value[key][0] for value in near]):.2f}" if near else ""
        row["minutes"] = f"{np.mean([value['cpu_seconds'] for value in own.values()]) / 60:.1f}"
        rows.append(row)
    return rows
