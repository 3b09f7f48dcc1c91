"""The tables of the gradient-matching benchmark, from finished cells alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gradient_matching_data import NOISE_ALONE, Cell
from tables import interval_text, print_table, write_figures

Found = Mapping[Cell, dict[str, Any]]
Row = dict[str, Any]
Seeds = Sequence[tuple[Cell, dict[str, Any]]]  # the cells of one line with their figures

_ORDER = ("untuned", "zero-shot", "few-shot", "gradient matching", "random", "herding", "k-center", "real rows")


def print_tables(tables: Sequence[str], found: Found, *, default: str, models: Sequence[str], path: Path) -> None:
    """Print as markdown what the cells give, and write it as JSON."""
    made: dict[str, list[Row]] = {}
    if "main" in tables:
        made["main"] = main_rows(found, default=default, models=models)
        print_table(made["main"], "Conditions")
    if "targets" in tables:
        made["targets"] = target_rows(found, models=models)
        print_table(made["targets"], "Targets")
    if "retokenised" in tables:
        made["retokenised"] = retokenised_rows(found)
        print_table(made["retokenised"], "Loss of the emitted string, tokenised again")
    if any("reports" in value for value in found.values()):
        made["reports"] = report_rows(found)
        print_table(made["reports"], "Reports of the first seed")
    write_figures(path, made)


def grouped(found: Found) -> dict[Cell, list[tuple[Cell, dict[str, Any]]]]:
    """Cells of one line, in the order of their seeds, under the line's cell of seed -1."""
    lines: dict[Cell, list[tuple[Cell, dict[str, Any]]]] = {}
    for cell, value in sorted(found.items(), key=lambda item: item[0].seed):
        line = Cell(cell.dataset, cell.condition, cell.real, cell.epsilon, cell.target, -1)
        lines.setdefault(line, []).append((cell, value))
    return lines


def main_rows(found: Found, *, default: str, models: Sequence[str]) -> list[Row]:
    """One row per condition, number of real rows and epsilon."""
    lines = {
        line: values
        for line, values in grouped(found).items()
        if line.condition in _ORDER
        and line.target in ("", default)
        and (line.epsilon == math.inf or (line.real is None and line.epsilon != 1))
    }
    rows = []
    for line, values in sorted(lines.items(), key=lambda item: place(item[0])):
        baseline = lines.get(Cell(line.dataset, "zero-shot", 0, seed=-1), [])
        rows.append(
            {
                "data": line.dataset,
                "condition": line.condition,
                "real rows": real_text(line),
                "epsilon": epsilon_text(line),
                "SNR bound": noise_text(line, values),
                "seeds": seeds_text(values),
                **accuracy_columns(values, baseline if line.condition != "zero-shot" else [], models),
                **loss_columns(values),
                "kept, dropped": dropped_text(values),
                "CPU s": number(mean_of(values, "cpu_seconds"), 3),
            }
        )
    return rows


def target_rows(found: Found, *, models: Sequence[str]) -> list[Row]:
    """One row per target, epsilon and number of real rows."""
    rows = []
    lines = {line: values for line, values in grouped(found).items() if line.condition == "gradient matching"}
    for line, values in sorted(lines.items(), key=lambda item: (place(item[0]), item[0].target)):
        if line.epsilon not in (1, 8, math.inf, NOISE_ALONE) or line.real not in (50, None):
            continue
        cosines = [cosine for _, value in values for cosine in value["target_cosines"]]
        heads = lines.get(replace(line, target="head"), []) if line.target != "head" else []
        rows.append(
            {
                "data": line.dataset,
                "real rows": real_text(line),
                "epsilon": epsilon_text(line),
                "target": line.target,
                "numbers": number(mean_of(values, "target_dimension"), 8),
                "SNR bound": noise_text(line, values),
                "cosine with exact": number(float(np.mean(cosines)), 3),
                "seeds": seeds_text(values),
                **loss_columns(values),
                **accuracy_columns(values, [], models),
                "minus head": difference(values, heads, models[0]),
            }
        )
    return rows


def difference(values: Seeds, others: Seeds, model: str) -> str:
    """Accuracy minus that of the others, paired, over the seeds that both have."""
    from understudy.evaluation.statistics.intervals import paired_bootstrap

    both = {cell.seed for cell, _ in values} & {cell.seed for cell, _ in others}
    tables = [correct_table([pair for pair in side if pair[0].seed in both], model) for side in (values, others)]
    if tables[0] is None or tables[1] is None:
        return ""
    gain = paired_bootstrap(tables[0], tables[1], seed=0, replicates=2000, level=0.95)
    return interval_text([gain.value, gain.low, gain.high])


def retokenised_rows(found: Found) -> list[Row]:
    """Matched strings against zero-shot text and the best of plain samples, text by text."""
    from scipy.stats import mannwhitneyu, wilcoxon

    rows = []
    for cell, plain in found.items():
        matched = found.get(Cell(cell.dataset, "gradient matching", cell.real, cell.epsilon, cell.target, cell.seed))
        if cell.condition != "plain samples" or matched is None:
            continue
        by_text = {(label, i): loss for label, i, loss in matched["emitted_losses"]}
        prompted = np.array([loss for _, loss in plain["zero_shot_losses"]])
        pairs = {
            name: np.array([(by_text[label, i], loss) for label, i, loss in best if (label, i) in by_text])
            for name, best in plain["best_losses"].items()
        }
        ours = next(iter(pairs.values()))[:, 0]
        row: Row = {
            "data": cell.dataset,
            "real rows": real_text(cell),
            "texts": str(len(ours)),
            "matched": number(float(np.median(ours)), 3),
            "zero-shot": number(float(np.median(prompted)), 3),
            "reduction": f"{1 - np.median(ours) / np.median(prompted):.0%}",
            # Text i of one side has nothing to do with text i of the other: an unpaired test.
            "p": number(float(mannwhitneyu(ours, prompted, alternative="less").pvalue), 2),
        }
        for name, both in pairs.items():
            p = wilcoxon(both[:, 0], both[:, 1], alternative="less").pvalue
            best = f"{np.median(both[:, 1]):.3f}, p {p:.2g}"
            row[f"best of as many plain samples: {name.replace('_', ' ')}"] = f"{plain['samples_bought'][name]}: {best}"
        rows.append(row)
    return rows


def report_rows(found: Found) -> list[Row]:
    """What seed 0 was measured for beside accuracy."""
    rows = []
    for cell, value in sorted(found.items(), key=lambda item: (place(item[0]), item[0].target)):
        if "reports" not in value:
            continue
        seen = value["reports"]
        audit, errors = seen["membership"], seen["gradient_error"]
        rows.append(
            {
                "data": cell.dataset,
                "condition": f"{cell.condition} {cell.target}".strip(),
                "real rows": real_text(cell),
                "epsilon": epsilon_text(cell),
                "log-perplexity": number(seen["log_perplexity"], 3),
                "Frechet (real)": f"{seen['frechet'][0]:.3f} ({seen['frechet'][1]:.3f})",
                "nearest real (holdout)": f"{seen['nearest_median'][0]:.3f} ({seen['nearest_median'][1]:.3f})",
                "gradient error, first and last": f"{errors[0][1]:.2f}, {errors[-1][1]:.2f}",
                "membership advantage": "" if audit is None else interval_text(audit["advantage"]),
                "of the control": "" if audit is None else interval_text(audit["control"]["advantage"]),
            }
        )
    return rows


def accuracy_columns(
    values: list[tuple[Cell, dict[str, Any]]], baseline: list[tuple[Cell, dict[str, Any]]], models: Sequence[str]
) -> Row:
    """Accuracy per target model, and of the first one the difference to zero-shot over as many seeds."""
    from understudy.evaluation.statistics.intervals import accuracy_interval, paired_bootstrap

    row: Row = {}
    for model in models:
        table = correct_table(values, model)
        if table is None:
            row[model] = ""
            continue
        found = accuracy_interval(table, seed=0, replicates=2000, level=0.95)
        row[model] = interval_text([found.value, found.low, found.high])
        base = correct_table(baseline, model)
        if model == models[0] and base is not None:
            gain = paired_bootstrap(table, base, seed=0, replicates=2000, level=0.95)
            row["minus zero-shot"] = interval_text([gain.value, gain.low, gain.high])
        elif model == models[0]:
            row["minus zero-shot"] = ""
    return row


def correct_table(values: Seeds, model: str) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """(seeds, test rows) bool; None where no cell has rows."""
    rows = [[mark == "1" for mark in value["correct"][model]] for _, value in values if "correct" in value]
    return np.array(rows, dtype=bool) if rows else None


def loss_columns(values: list[tuple[Cell, dict[str, Any]]]) -> Row:
    """Median losses of all emitted strings, of those kept, of zero-shot text; and of the rows to the exact gradient."""
    return {
        "loss": number(mean_of(values, "matching", "emitted_loss_median"), 3),
        "kept": number(mean_of(values, "matching", "kept_loss_median"), 3),
        "zero-shot's": number(mean_of(values, "zero_shot_loss_median"), 3),
        "to the exact head": number(mean_of(values, "head_loss_median"), 3),
    }


def dropped_text(values: list[tuple[Cell, dict[str, Any]]]) -> str:
    """Rows kept of those matched, and why the others went, as means over the seeds that have any left."""
    none = ", ".join(str(cell.seed) for cell, value in values if "refused" in value)
    reports = [value for _, value in values if "dropped" in value]
    if not reports:
        return ""
    totals: dict[str, float] = {}
    for value in reports:
        for reasons in value["dropped"].values():
            for reason, count in reasons.items():
                totals[reason] = totals.get(reason, 0.0) + count / len(reports)
    kept = sum(value.get("rows", 0) for value in reports) / len(reports)
    drawn = sum(sum(value["drawn"].values()) for value in reports) / len(reports)
    why = ", ".join(f"{reason.replace('_', ' ')} {count:.3g}" for reason, count in totals.items() if count)
    return (
        f"{kept:.3g} of {drawn:.3g}" + (f": {why}" if why else "") + (f"; none left with seed {none}" if none else "")
    )


def mean_of(values: list[tuple[Cell, dict[str, Any]]], *keys: str) -> float | None:
    """Mean over seeds of a figure; None where no cell has it."""
    known = []
    for _, value in values:
        found: Any = value
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        if found is not None:
            known.append(float(found))
    return sum(known) / len(known) if known else None


def place(cell: Cell) -> tuple[str, int, float, float]:
    """Where a line stands: conditions in order, few real rows and small epsilon first."""
    order = _ORDER.index(cell.condition) if cell.condition in _ORDER else len(_ORDER)
    return cell.dataset, order, math.inf if cell.real is None else cell.real, cell.epsilon


def real_text(cell: Cell) -> str:
    return "all" if cell.real is None else str(cell.real)


def epsilon_text(cell: Cell) -> str:
    return f"{cell.epsilon:g}" if cell.target else ""


def noise_text(line: Cell, values: list[tuple[Cell, dict[str, Any]]]) -> str:
    """The bound on the signal-to-noise ratio; data-independent, so the same for every seed."""
    return (
        "infinite" if line.target and line.epsilon == math.inf else number(mean_of(values, "signal_to_noise_bound"), 3)
    )


def seeds_text(values: list[tuple[Cell, dict[str, Any]]]) -> str:
    return ", ".join(str(cell.seed) for cell, _ in values)


def number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}g}"
