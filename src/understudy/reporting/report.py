"""The report that a run leaves in DIR/internal: report.json for programs, one report.html for people.

The page is one file: styles and figures inside, no script, nothing fetched; a content security policy in the
page makes the browser enforce that. Synthetic texts, label names and statements are untrusted and escaped.
The report is computed from private members, holdouts or test rows and says so at its top: internal, not
private.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from understudy.evaluation.metric_name import MetricName
from understudy.evaluation.metrics import Histogram, Metrics
from understudy.evaluation.texts.diversity import LengthHistogram
from understudy.frozen import Frozen
from understudy.reporting import text_formatting, view
from understudy.reporting.budget import BudgetUse, budget_bar, budget_of
from understudy.reporting.drawing import Drawing
from understudy.reporting.pages import plain, read_content, render, write_closed
from understudy.reporting.view import MethodSections, SectionsOf
from understudy.reporting.worth import Completeness, worth

MARKER: Final = "internal, not private"
MOST_SAMPLES = 16

Sample = Mapping[str, str]

__all__ = [
    "About",
    "BudgetUse",
    "Content",
    "Drawing",
    "ReportFiles",
    "build_report",
    "choose_samples",
    "rebuild_report",
]


@dataclass(frozen=True)
class About:
    """What the report is about, in the caller's words.

    Attributes:
        made: what was made, such as `500 labelled texts in 2 classes, by METHOD`.
        label_names: declared labels in their order.
        created: time of the run, from the caller's clock, as it shall be shown.
        facts: further public facts, such as run ids; name -> value.
        completeness: which rows are missing; None where nothing was asked for.
    """

    made: str = ""
    label_names: tuple[str, ...] = ()
    created: str = ""
    facts: Mapping[str, str] = field(default_factory=dict, repr=False)
    completeness: Completeness | None = None


@dataclass(frozen=True)
class ReportFiles:
    """Where the report was written."""

    html: Path
    json: Path


class Content(Frozen):
    """All that a report says: report.json is this object, report.html is a pure function of it."""

    format: Literal["understudy.report/1"] = "understudy.report/1"
    marker: Literal["internal, not private"] = MARKER
    title: str
    method: str = ""
    made: str = ""
    created: str = ""
    facts: dict[str, str] = Field(default_factory=dict, repr=False)
    label_names: tuple[str, ...] = ()
    metrics: dict[str, float] = Field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = Field(default_factory=dict)
    missing: tuple[str, ...] = ()
    lengths: LengthHistogram | None = None
    histograms: dict[str, Histogram] = Field(default_factory=dict)
    declared: tuple[MetricName, ...] = ()
    statement: dict[str, Any] = Field(default_factory=dict)
    budget: BudgetUse | None = None
    samples: tuple[dict[str, str], ...] = Field(default=(), repr=False)
    sample_count: int = 0
    completeness: Completeness | None = None
    figures: tuple[dict[str, str], ...] = ()

    def measured(self) -> Metrics:
        """The figures with their intervals."""
        return Metrics(values=self.metrics, **_beside_values(self))


def _beside_values(measured: Metrics | Content) -> dict[str, Any]:
    """What `Metrics` and the report's content both hold, under the same names, of what was measured."""
    return {name: getattr(measured, name) for name in Metrics.model_fields if name != "values"}


def build_report(  # noqa: PLR0913 - all that a page says, each part by name
    directory: Path,
    *,
    title: str,
    metrics: Metrics,
    statement: Mapping[str, Any],
    samples: Sequence[Sample] = (),
    figures: Sequence[Drawing] = (),
    budget: BudgetUse | None = None,
    about: About | None = None,
    method: str = "",
    sections: SectionsOf | None = None,
) -> ReportFiles:
    """Write report.json and report.html, closed to others (0600); an existing report is replaced, each file at once.

    Args:
        directory: the run's internal folder; made when absent, closed to other users (0700).
        title: heading of the page.
        metrics: what was measured; names that are neither common nor declared are refused by `Metrics` itself.
        statement: the privacy statement; keys may be absent and are then said to be.
        samples: synthetic rows in their order, `label` optional, the other keys are texts (`text`, or
            `instruction` and `response`). The first of each label in turn are shown, at most 16, never picked by
            hand.
        figures: further figures, from `drawing.draw`.
        budget: of the source; None takes it from the statement, where that names it.
        about: what the report is about.
        method: name of the method that ran, by which `rebuild_report` asks for its sections; empty for none.
        sections: what the method adds to the page; None for nothing.

    Returns:
        The two files' paths.
    """
    about = about or About()
    content = Content(
        title=title,
        method=method,
        made=about.made,
        created=about.created,
        facts=dict(about.facts),
        label_names=about.label_names,
        metrics=metrics.values,
        **_beside_values(metrics),
        statement=plain(statement),
        budget=budget or budget_of(statement),
        samples=tuple(dict(sample) for sample in choose_samples(samples)),
        sample_count=len(samples),
        completeness=about.completeness,
        figures=tuple(asdict(drawing) for drawing in figures),
    )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps(plain(content.model_dump()), indent=2, ensure_ascii=False, allow_nan=False)
    write_closed(directory / "report.json", text + "\n")
    return _write_page(directory, content, sections)


def rebuild_report(directory: Path, sections_of: Callable[[str], SectionsOf | None]) -> ReportFiles:
    """Write report.html anew from report.json, for example after an update of the program.

    Args:
        directory: the run's internal folder.
        sections_of: name of a method -> what it adds to the page, or None; not asked where no method is named.

    Raises:
        InputError: when there is no report.json, or it is not one of this format.
    """
    content = read_content(directory, Content, check=Content.measured, format="understudy.report/1", whose="a run")
    return _write_page(directory, content, sections_of(content.method) if content.method else None)


def choose_samples(samples: Sequence[Sample], *, most: int = MOST_SAMPLES) -> list[Sample]:
    """The first rows of each label in turn, in the order given, at most `most`.

    >>> rows = [{"label": "a", "text": "1"}, {"label": "a", "text": "2"}, {"label": "b", "text": "3"}]
    >>> [row["text"] for row in choose_samples(rows, most=2)]
    ['1', '3']
    """
    by_label: dict[str, list[Sample]] = {}
    for sample in samples:
        by_label.setdefault(str(sample.get("label", "")), []).append(sample)
    longest = max((len(rows) for rows in by_label.values()), default=0)
    turns = [rows[turn] for turn in range(longest) for rows in by_label.values() if turn < len(rows)]
    return turns[:most]


def _write_page(directory: Path, content: Content, sections: SectionsOf | None) -> ReportFiles:
    metrics = content.measured()
    added = sections(metrics, content.statement) if sections else MethodSections()
    common = (
        *(added.first or (view.utility_section(metrics),)),
        view.fidelity_section(metrics),
        view.memorization_section(metrics),
        view.diversity_section(metrics),
        *([view.label_section(metrics, content.label_names)] if content.label_names else []),
    )
    page = render(
        "report.html.j2",
        content=content,
        sections=[*(common if added.common else added.first), *added.last],
        extra=[Drawing(**drawing) for drawing in content.figures],
        headline=text_formatting.headline(content.statement),
        opening=worth(metrics, added.headlines),
        shortfall=content.completeness.in_words() if content.completeness else "",
        samples=[_shown(sample) for sample in content.samples],
        statement=text_formatting.statement_rows(content.statement),
        budget=budget_bar(content.budget) if content.budget else None,
        everything=view.all_figures(metrics),
    )
    files = ReportFiles(html=directory / "report.html", json=directory / "report.json")
    write_closed(files.html, page)
    return files


def _shown(sample: Sample) -> dict[str, Any]:
    parts = [(text_formatting.humanise(key), text) for key, text in sample.items() if key != "label"]
    return {"label": sample.get("label"), "parts": parts, "single": len(parts) == 1}
