"""The report of a comparison: report.json for programs, one report.html for people. Internal, not private.

The page is a pure function of report.json, as a run's is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from understudy.evaluation.metric_name import MetricName
from understudy.evaluation.statistics.comparison import (
    baselines_of,
    count_name,
    headline_of,
    mean_name,
    seed_name,
    spread_name,
)
from understudy.reporting import view
from understudy.reporting.comparison_content import FORMAT, ComparisonContent, said_epsilon
from understudy.reporting.differences import DIFFERENCES, differences_table
from understudy.reporting.drawing import INK, MUTED, PROMPT, REAL, SYNTHETIC, Drawing, draw, percent_axis
from understudy.reporting.pages import plain, read_content, render, stored_report, write_closed
from understudy.reporting.report import ReportFiles
from understudy.reporting.text_formatting import number, percent
from understudy.reporting.text_formatting import points as in_points
from understudy.reporting.view import Section, Table

SPREAD: Final = (
    "Mean over seeds. The interval is the mean of the runs' own intervals, over the same test rows, and holds nothing "
    "of other seeds. The spread is the standard deviation over seeds (n - 1), and holds nothing of other test rows."
)
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
_BASELINES: Final = (("prompt-only text", PROMPT, (0, (1, 3))), ("real text", REAL, (0, (4, 3))))
_LINES: Final = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1, 1, 1)))


def build_comparison(directory: Path, content: ComparisonContent) -> ReportFiles:
    """Write report.json and report.html, closed to others (0600); an existing report is replaced, each file at once."""
    text = json.dumps(plain(content.model_dump()), indent=2, ensure_ascii=False, allow_nan=False)
    write_closed(directory / "report.json", text + "\n")
    return _write_page(directory, content)


def read_comparison(directory: Path) -> ComparisonContent:
    """The report of a comparison, from its folder.

    Raises:
        InputError: when there is no report.json, or it is not one of this format.
    """
    return read_content(
        directory, ComparisonContent, check=ComparisonContent.measured, format=FORMAT, whose="a comparison"
    )


def is_comparison(directory: Path) -> bool:
    """Whether a comparison's report lies in a folder."""
    return stored_report(directory).get("format") == FORMAT


def rebuild_comparison(directory: Path) -> ReportFiles:
    """Write report.html anew from report.json, for example after an update of the program.

    Raises:
        InputError: when there is no report.json, or it is not one of this format.
    """
    return _write_page(directory, read_comparison(directory))


def table_of(content: ComparisonContent, figure: MetricName) -> Table | None:
    """Means of one figure by method and epsilon, with interval, spread and number of seeds; None if there is none."""
    form = shown(figure)
    rows = []
    for group in content.groups:
        name, spread = mean_name(group.name, figure.pattern), spread_name(group.name, figure.pattern)
        if name not in content.metrics:
            continue
        rows.append(
            (
                group.said,
                form(content.metrics[name]),
                view.range_of(content.measured(), name, form),
                form(content.metrics[spread]).lstrip("+") if spread in content.metrics else "one seed",
                number(content.metrics[count_name(group.name)]),
            )
        )
    return Table(("", "Mean", "Interval", "Spread over seeds", "Seeds"), tuple(rows)) if rows else None


def figure_rows(content: ComparisonContent) -> list[dict[str, Any]]:
    """One row per group and figure that was measured, for programs."""
    rows = []
    for group in content.groups:
        for figure in content.figures:
            name = mean_name(group.name, figure.pattern)
            if name in content.metrics:
                low, high = content.intervals.get(name, (None, None))
                rows.append(
                    {
                        "method": group.method,
                        "epsilon": group.epsilon,
                        "figure": figure.pattern,
                        "mean": content.metrics[name],
                        "spread": content.metrics.get(spread_name(group.name, figure.pattern)),
                        "low": low,
                        "high": high,
                        "seeds": len(group.seeds),
                    }
                )
    return rows


def shown(figure: MetricName) -> Any:
    """How a figure is written."""
    if figure.unit != "share":
        return number
    return in_points if "_minus_" in figure.pattern else percent


def headline_drawing(content: ComparisonContent) -> Drawing | None:
    """The headline figure against epsilon, a line per method, and the baselines across; None where it is missing."""
    name = headline_of(content.figures)
    figure, lines = _figure(content, name), _lines(content, name)
    if figure is None or not lines:
        return None
    epsilons = sorted({group.epsilon for group in content.groups})
    across = [
        (words, colour, dashes, value)
        for other, (words, colour, dashes) in zip(baselines_of(name), _BASELINES, strict=False)
        if (value := _mean_of_all(content, other)) is not None
    ]
    form = shown(figure)
    columns = 2 if max(map(len, lines)) <= 24 else 1

    def paint(page: Any) -> None:
        axes = page.subplots()
        for number_of, (method, points) in enumerate(lines.items()):
            # Beside each other, so that intervals do not hide each other.
            aside = 0.08 * (number_of - (len(lines) - 1) / 2)
            places = [epsilons.index(epsilon) + aside for epsilon, _, _ in points]
            colour = SYNTHETIC if number_of % 2 == 0 else INK
            for place, (_, _, interval) in zip(places, points, strict=True):
                if interval is not None:
                    axes.plot((place, place), interval, color=colour, linewidth=4, alpha=0.3, solid_capstyle="round")
            axes.plot(
                places,
                [value for _, value, _ in points],
                color=colour,
                linewidth=1.5,
                linestyle=_LINES[number_of % len(_LINES)],
                marker=_MARKERS[number_of % len(_MARKERS)],
                markersize=8,
                label=method,
            )
        for words, colour, dashes, value in across:
            axes.axhline(value, color=colour, linewidth=1.5, linestyle=dashes, label=words, zorder=1)
        axes.set_xticks(range(len(epsilons)), [said_epsilon(epsilon) for epsilon in epsilons])
        axes.set_xlim(-0.5, len(epsilons) - 0.5)
        axes.set_xlabel("epsilon (not to scale)")
        axes.margins(y=0.1)
        if form is percent:
            percent_axis(axes.yaxis)
        axes.yaxis.set_tick_params(labelcolor=MUTED)
        axes.grid(axis="y")
        page.legend(frameon=False, loc="outside lower center", ncols=columns, fontsize=11)

    said = [
        f"{method} at epsilon {said_epsilon(epsilon)}: {form(value)}"
        for method, points in lines.items()
        for epsilon, value, _ in points
    ]
    said += [f"{words}: {form(value)}" for words, _, _, value in across]
    height = 270 + 18 * math.ceil((len(lines) + len(across)) / columns)
    title = f"{figure.meaning}, by epsilon"
    return draw("comparison", title=title, alt="; ".join(said), height=height, paint=paint)


def _lines(content: ComparisonContent, figure: str) -> dict[str, list[tuple[float, float, tuple[float, float] | None]]]:
    """Method -> (epsilon, mean, interval) of each of its groups, by epsilon."""
    lines: dict[str, list[tuple[float, float, tuple[float, float] | None]]] = {}
    for group in sorted(content.groups, key=lambda group: group.epsilon):
        name = mean_name(group.name, figure)
        if name in content.metrics:
            point = (group.epsilon, content.metrics[name], content.intervals.get(name))
            lines.setdefault(group.method, []).append(point)
    return {group.method: lines[group.method] for group in content.groups if group.method in lines}


def _mean_of_all(content: ComparisonContent, figure: str) -> float | None:
    """The mean over all runs that measured a baseline: each measures it anew."""
    names = [seed_name(group.name, seed, figure) for group in content.groups for seed in group.seeds]
    found = [content.metrics[name] for name in names if name in content.metrics]
    return math.fsum(found) / len(found) if found else None


def _write_page(directory: Path, content: ComparisonContent) -> ReportFiles:
    headline = headline_of(content.figures)
    sections = []
    for index, figure in enumerate(sorted(content.figures, key=lambda figure: figure.pattern != headline)):
        first = figure.pattern == headline
        table = table_of(content, figure)
        if table is not None:
            lead = (figure.pattern,) if not first else (figure.pattern, _baselines_said(content, headline))
            drawing = headline_drawing(content) if first else None
            sections.append(Section(f"figure-{index}", figure.meaning, tuple(filter(None, lead)), drawing, table))
    page = render(
        "comparison.html.j2",
        content=content,
        sections=sections,
        spread=SPREAD,
        differences=_differences(content, headline),
        differences_note=DIFFERENCES,
        runs=_runs(content, headline),
        everything=view.all_figures(content.measured()),
    )
    files = ReportFiles(html=directory / "report.html", json=directory / "report.json")
    write_closed(files.html, page)
    return files


def _baselines_said(content: ComparisonContent, headline: str) -> str:
    """What the dashed lines are, in words; empty without."""
    found = {name: _mean_of_all(content, name) for name in baselines_of(headline)}
    words = [f"{percent(value)} ({name})" for name, value in found.items() if value is not None]
    return f"Baselines, each the mean over all runs that measured it: {', '.join(words)}." if words else ""


def _differences(content: ComparisonContent, headline: str) -> Table | None:
    figure = _figure(content, headline)
    return differences_table(content, figure) if figure else None


def _figure(content: ComparisonContent, name: str) -> MetricName | None:
    return next((figure for figure in content.figures if figure.pattern == name), None)


def _runs(content: ComparisonContent, headline: str) -> Table:
    """Each run by itself."""
    figure = _figure(content, headline)
    rows: list[tuple[str, ...]] = []
    for group in content.groups:
        for seed in sorted((*group.seeds, *group.missing)):
            name = seed_name(group.name, seed, headline)
            told = shown(figure)(content.metrics[name]) if figure and name in content.metrics else ""
            between = view.range_of(content.measured(), name, shown(figure)) if figure else ""
            state = "missing" if seed in group.missing else "done"
            rows.append((f"{group.said}, seed {seed}", state, told, between))
    return Table(("", "State", headline or "Headline", "Interval"), tuple(rows))


def lines_of(content: ComparisonContent) -> Sequence[tuple[str, ...]]:
    """The rows that a terminal shows: method, epsilon, mean, interval, spread and seeds of the headline figure."""
    headline = _figure(content, headline_of(content.figures))
    table = table_of(content, headline) if headline else None
    return table.rows if table else ()
