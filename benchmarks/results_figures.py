"""Claim: every figure of docs/results is drawn from the numbers that its page publishes, and from nothing else.

    python benchmarks/results_figures.py

A method's figure, and that of the performance page, is drawn from the JSON beside its page; those of the privacy and
engine pages from the pages' own tables. The same numbers give the same bytes under one version of matplotlib.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "results"
OURS, OTHER, REAL = "#1b6ca8", "#8a8f98", "#b5651d"
STYLE = {
    "svg.hashsalt": "understudy",
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
}
Point = tuple[float, float, float]  # value, lower end, upper end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the figures; default: docs/results")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, (size, paint) in FIGURES.items():
        draw(options.out / f"{name}.svg", size, paint)
        print(options.out / f"{name}.svg")


def draw(path: Path, size: tuple[float, float], paint: Callable[[Figure], None]) -> None:
    """Write one figure as SVG, without a date."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        FigureCanvasSVG(figure).print_svg(str(path), metadata={"Date": None, "Creator": None})


def published(name: str) -> dict[str, Any]:
    """The numbers beside a page."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def table(name: str, heading: str) -> list[list[str]]:
    """The cells of the first table of a page's section, without its header."""
    section = (FOLDER / f"{name}.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = re.search(r"(?:^\|.*\n)+", section, flags=re.M)
    if lines is None:
        raise SystemExit(f"{name}.md: expected a table under the heading {heading}, found none")
    return [[cell.strip() for cell in line.strip("| \n").split("|")] for line in lines[0].splitlines()[2:]]


def point(text: str) -> Point:
    """A figure with its interval, as tables print it."""
    value, low, high = (float(number) for number in re.findall(r"-?\d+\.\d+", text)[:3])
    return value, low, high


def intervals(
    axes: Any, names: Sequence[str], points: Sequence[Point], *, colours: Sequence[str], shift: float
) -> None:
    """One line per name: the value and its interval."""
    for place, (one, colour) in enumerate(zip(points, colours, strict=True)):
        value, low, high = one
        error = [[value - low], [high - value]]
        axes.errorbar(value, place + shift, xerr=error, fmt="o", color=colour, markersize=4, capsize=2)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x")


def conditional_generation(figure: Figure) -> None:
    """Accuracy of the probe per condition, at both epsilons."""
    rows = published("conditional-generation")["rows"]
    names = list(dict.fromkeys(row["condition"] for row in rows))
    order = ["prompt-only", *(name for name in names if name not in ("real", "prompt-only")), "real"]
    axes = figure.subplots()
    for epsilon, shift, colour in (("3.0", -0.14, OURS), ("inf", 0.14, OTHER)):
        found = {row["condition"]: row["probe_accuracy"] for row in rows if row["epsilon"] == epsilon}
        for place, name in enumerate(order):
            if name in found:
                ends = name in ("prompt-only", "real")
                value, low, high = found[name]
                axes.errorbar(
                    value,
                    place + (0 if ends else shift),
                    xerr=[[value - low], [high - value]],
                    fmt="o",
                    color=REAL if ends else colour,
                    markersize=4,
                    capsize=2,
                    label=f"epsilon {epsilon.removesuffix('.0')}" if name == "naive" else None,
                )
    axes.set_yticks(range(len(order)), order)
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.grid(axis="x")
    axes.set_xlabel("accuracy of a probe on real test rows, 95 %")
    axes.legend(loc="upper right", frameon=False)


def gradient_matching(figure: Figure) -> None:
    """Accuracy of tiny-llama per condition on both data sets."""
    every = published("gradient-matching")["main"]
    datasets = list(dict.fromkeys(row["data"] for row in every))
    for axes, dataset in zip(figure.subplots(1, 2), datasets, strict=True):
        rows = [row for row in every if row["data"] == dataset]
        names = [condition_name(row) for row in rows]
        ours = [OURS if row["condition"] == "gradient matching" else REAL for row in rows]
        prompted = ("zero-shot", "few-shot", "untuned")
        colours = [OTHER if row["condition"] in prompted else colour for row, colour in zip(rows, ours, strict=True)]
        intervals(axes, names, [point(row["tiny-llama"]) for row in rows], colours=colours, shift=0.0)
        axes.set_title(dataset, fontsize=9)
        axes.set_xlabel("accuracy on real test rows, 95 %")
        if axes.get_subplotspec().colspan.start:
            axes.set_yticklabels([])


def condition_name(row: dict[str, str]) -> str:
    """A condition with its real rows and its epsilon."""
    if row["condition"] in ("untuned", "zero-shot"):
        return row["condition"]
    epsilon = f", epsilon {row['epsilon']}" if row["epsilon"] else ""
    return f"{row['condition']}, {row['real rows']} rows{epsilon}"


def preference_optimization(figure: Figure) -> None:
    """Distance to held-out text, round by round."""
    rows = published("preference-optimization")["rounds"]
    axes = figure.subplots()
    names = {"popri": ("POPri", OURS), "popri-shuffled": ("POPri, shuffled preferences", OTHER)}
    for row in rows:
        rounds = [float(value) for name, value in row.items() if re.fullmatch(r"round \d+", name)]
        label, colour = names.get(row["condition"], ("Private Evolution", REAL))
        axes.plot(range(1, len(rounds) + 1), rounds, "o-", color=colour, markersize=4, label=f"{label}")
    axes.axhline(float(rows[0]["real to real"]), color="black", linestyle=":", label="real text to real text")
    axes.set_xlabel("round")
    axes.set_ylabel("Fréchet distance to held-out text")
    axes.set_ylim(0)
    axes.grid(axis="y")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 0.3), frameon=False)


def privacy(figure: Figure) -> None:
    """What the grid costs, beside the wanted bound."""
    rows = [row for row in table("privacy", "What the grid costs") if re.match(r"\d+\.\d+ \(", row[1])]
    axes = figure.subplots()
    intervals(axes, [row[0] for row in rows], [point(row[1]) for row in rows], colours=[OURS] * len(rows), shift=0.0)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.axvline(1.1, color=REAL, linestyle="--", label="wanted at most")
    axes.set_xlabel("processor time, grid over floats: median, least and most")
    axes.legend(loc="upper right", frameon=False)


def trajectory_matching(figure: Figure) -> None:
    """Peak memory over the student's steps, for each way of differentiating them."""
    axes, rows = figure.subplots(), table("trajectory-matching", "Differentiating the student's steps")
    counts = (1, 2, 4, 6, 8)
    for cells, colour, marker in zip(rows, (OURS, OTHER, REAL), "os^", strict=True):
        axes.plot(counts, [float(cell) for cell in cells[2:]], color=colour, marker=marker, label=cells[0])
    axes.set_xlabel("N, steps of the student")
    axes.set_ylabel("MiB above the loaded model")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    axes.legend(frameon=False)


def knowledge_distillation(figure: Figure) -> None:
    """Loss of held-out responses per condition, and names guessed with and without noise."""
    losses, guessed = figure.subplots(1, 2, width_ratios=(3, 2))
    rows = published("knowledge-distillation")["financial_phrasebank"]
    names = [row["condition"].removesuffix(" (private)") for row in rows]
    of_the_client = {"distilled": OURS, "unranked": OURS, "dp_only": OTHER, "dp_instruct": OTHER}
    colours = [of_the_client.get(name, REAL) for name in names]
    intervals(losses, names, [point(row["loss"]) for row in rows], colours=colours, shift=0.0)
    losses.set_title("financial_phrasebank", fontsize=9)
    losses.set_xlabel("loss of held-out responses, 95 %")
    found = published("knowledge-distillation-reconstruction")
    noised = str(found["epsilon"])
    points = [(one["rate"], *one["interval"]) for one in (found["found"]["inf"][0], found["found"][noised][0])]
    intervals(guessed, ["no noise", f"epsilon {noised}"], points, colours=(REAL, OURS), shift=0.0)
    guessed.axvline(found["chance"], color="black", linestyle=":", label="chance")
    guessed.set_title("names guessed among 64", fontsize=9)
    guessed.set_xlabel("share of texts, 95 %")
    guessed.legend(loc="lower right", frameon=False)


def untuned(figure: Figure) -> None:
    """Accuracy of a user's first command: prompt-only, synthetic and real, per table and method."""
    axes, rows = figure.subplots(), table("untuned", "A user's first command")
    for place, row in enumerate(rows):
        conditions = (
            ("prompt-only", row[5], OTHER, 0.18),
            ("synthetic", row[4], OURS, 0.0),
            ("real", row[6], REAL, -0.18),
        )
        for label, text, colour, shift in conditions:
            value, low, high = point(text)
            axes.errorbar(
                value,
                place + shift,
                xerr=[[value - low], [high - value]],
                fmt="o",
                color=colour,
                markersize=4,
                capsize=2,
                label=label if place == 0 else None,
            )
    axes.set_yticks(range(len(rows)), [f"{row[0]}\n{row[1]}" for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="x")
    axes.set_xlabel("accuracy on real test rows, 95 %")
    axes.legend(frameon=False)


def engine(figure: Figure) -> None:
    """What was found over what was wanted; a bar to the right of 1 is more than wanted."""
    names, ratios = [], []
    for claim, _, target, found in table("engine", "Claims"):
        wanted = re.search(r"(>=|<=|<) ([\d.]+)", target)
        if wanted is None:
            continue
        for name, value in measurements(claim, found):
            names.append(name)
            margin = value / float(wanted[2])
            ratios.append(margin if wanted[1] == ">=" else 1 / margin)
    axes = figure.subplots()
    axes.barh(range(len(names)), [math.log2(one) for one in ratios], color=[OURS if r >= 1 else REAL for r in ratios])
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    ticks = (0.8, 1, 1.25, 1.5, 2)
    axes.set_xticks([math.log2(tick) for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("how many times better than wanted; below 1 the claim is missed")
    axes.grid(axis="x")


def performance(figure: Figure) -> None:
    """What an evaluation takes over its rows, and what a training holds beside what was predicted."""
    upper, lower = figure.subplots(2, 1)
    _seconds_over_rows(upper)
    _peaks(lower)


def _seconds_over_rows(axes: Axes) -> None:
    """Of an evaluation, by part, beside what grows as fast as the rows."""
    found = published("evaluation-scaling")["seconds"]
    shown = {
        "encoder": (OTHER, "s"),
        "everything but the encoder": (OURS, "o"),
        "utility": (REAL, "^"),
        "MAUVE": (REAL, "D"),
        "memorisation": (REAL, "v"),
    }
    for name, (colour, marker) in shown.items():
        rows = [int(size) for size in found[name]]
        axes.loglog(rows, list(found[name].values()), color=colour, marker=marker, markersize=5, label=name)
    ends = [int(size) for size in found["utility"]]
    axes.loglog(ends, [3.0 * size / ends[0] for size in ends], color="#bbbbbb", linestyle=":", label="linear")
    axes.set_xticks(ends, [f"{size // 1000}" for size in ends])
    axes.minorticks_off()
    axes.set_xlabel("thousand rows per set")
    axes.set_ylabel("processor seconds")
    axes.grid(axis="y")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _peaks(axes: Axes) -> None:
    """Measured and predicted peak of each training."""
    peaks = published("memory")["peaks"]
    for shift, side, colour in ((-0.2, "measured", OURS), (0.2, "predicted", REAL)):
        values = [one[f"{side}_mib"] for one in peaks.values()]
        axes.barh([place + shift for place in range(len(peaks))], values, height=0.36, color=colour, label=side)
    axes.set_yticks(range(len(peaks)), list(peaks))
    axes.invert_yaxis()
    axes.set_xlabel("peak memory of a training above the loaded model, MiB")
    axes.legend(loc="upper right", frameon=False)
    axes.grid(axis="x")


def measurements(claim: str, found: str) -> list[tuple[str, float]]:
    """The figures of one line of the table of claims: several where it measured several things or times."""
    said = {
        "DP LoRA step": "DP step: throughput",
        "the same": "DP step: peak memory",
        "overhead": "a task's overhead",
        "steered against": "steered generation: hidden",
        "a token among": "drawing a token",
    }
    name = next((short for start, short in said.items() if claim.startswith(start)), claim)
    if claim.startswith("batched PPLM"):
        return [(f"batched PPLM: {way}", float(value)) for way, value in re.findall(r"([a-z_]+) (\d+\.\d+)", found)]
    if "runs" in found:
        return [(f"{name}, run {i}", float(v)) for i, v in enumerate(re.findall(r"\d+", found.split(" ms")[0]), 1)]
    return [(name, float(re.findall(r"\d+\.\d+", found)[0]))]


FIGURES: dict[str, tuple[tuple[float, float], Callable[[Figure], None]]] = {
    "conditional-generation": ((6.5, 3.2), conditional_generation),
    "gradient-matching": ((8.5, 4.6), gradient_matching),
    "preference-optimization": ((6.0, 3.4), preference_optimization),
    "trajectory-matching": ((6.5, 3.0), trajectory_matching),
    "knowledge-distillation": ((8.0, 2.8), knowledge_distillation),
    "untuned": ((6.5, 3.8), untuned),
    "privacy": ((6.5, 2.4), privacy),
    "engine": ((6.5, 2.8), engine),
    "performance": ((8.0, 6.4), performance),
}


if __name__ == "__main__":
    main()
