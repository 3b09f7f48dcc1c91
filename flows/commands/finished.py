"""What the commands of finished runs do: more texts, and the report's page."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.errors import InputError
from understudy.flows.commands.terminal import show
from understudy.lazy import load

if TYPE_CHECKING:
    from understudy.reporting.view import SectionsOf


def generate(*, origin: Path, samples: int, draw: int, out: Path | None, as_json: bool) -> None:
    """`understudy generate`: post-processing of a released model."""
    if draw == 0:
        raise InputError("--draw 0: expected at least 1, for the run's own texts are in its export/ already")
    from understudy.runs.further_texts import generate_more
    from understudy.tasks.engine.progress import Reporter

    with closing(Reporter("generate", publish=lambda _: None)) as shown:
        path, rows = generate_more(origin, samples=samples, draw=draw, out=out, progress=shown.update)
    show({"synthetic": str(path), "rows": rows, "charged": "nothing"}, as_json=as_json)


def report(*, folder: Path, as_json: bool) -> None:
    """`understudy report`."""
    from understudy.locks import locked_folder
    from understudy.methods import registry
    from understudy.reporting.audit import is_audit
    from understudy.reporting.audit import sections as audit_sections
    from understudy.reporting.comparison import is_comparison, rebuild_comparison
    from understudy.reporting.kinds import is_evaluation
    from understudy.reporting.report import rebuild_report
    from understudy.runs.placement import INTERNAL, close_folder

    def sections_of(method: str) -> SectionsOf | None:
        place = registry.get(method).report.sections
        return load(place) if place else None

    # Neither a run that takes the folder nor a purge may come between the figures and the page.
    with locked_folder(folder) if folder.is_dir() else nullcontext():
        if is_comparison(folder):
            files = rebuild_comparison(folder)
        elif is_evaluation(folder):
            files = rebuild_report(folder, lambda _: None)
        elif is_audit(folder):
            files = rebuild_report(folder, lambda _: audit_sections)
        else:
            files = rebuild_report(folder / INTERNAL, sections_of)
            close_folder(folder / INTERNAL)  # one that an earlier version left open
    show({"report": str(files.html), "figures": str(files.json)}, as_json=as_json)
