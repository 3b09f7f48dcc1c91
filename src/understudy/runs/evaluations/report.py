"""The report of `understudy evaluate`: whose rows it is made of is noted, so that `purge` finds it.

Nobody names a source to `evaluate`, so the rows say it: each is known to the ledger by its keyed hash once a run has
registered it, before the evaluation or after it (`unregistered`). What the report is made of stands beside it, in
`sources.json`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from understudy.data.digests import row_digests
from understudy.errors import InputError
from understudy.evaluation.metrics import Metrics
from understudy.evaluation.tables import ComparedTables, measure_tables, records_of
from understudy.locks import locked_folder
from understudy.privacy.ledger.ledger import Ledger
from understudy.progress import Progress
from understudy.reporting.kinds import TITLE_OF_EVALUATION, is_evaluation
from understudy.reporting.report import About, ReportFiles, build_report
from understudy.runs.evaluations.unregistered import (
    SOURCES_FILE,
    forget_rows,
    note_rows,
    sources_told,
    take_over,
    tell_sources,
)
from understudy.runs.finished_folders import remember
from understudy.runs.folders import PROBE, check_outside_of_runs, try_folder
from understudy.settings import settings

_FILES = ("report.json", "report.html")


def report_on_tables(
    compared: ComparedTables, out: Path, *, device: str = "cpu", progress: Progress | None = None
) -> tuple[ReportFiles, Metrics]:
    """Measure a synthetic table and write report.html and report.json. Internal: they are made from real rows.

    Args:
        compared: the tables, from `evaluation.tables.read_tables`.
        out: folder of the report; made when absent, closed to other users (0700).
        device: torch device of the sentence encoder and the classifier.
        progress: called with (tenths read, ten), whatever the number of rows.

    Raises:
        UnderstudyError: the ledger, which knows whose the rows are, cannot be read.
    """
    digests = [digest for part in (compared.train, compared.test) for digest in row_digests(part.table)]
    noted = note_rows(out, digests)
    sources = _sources_of(digests)
    metrics = measure_tables(compared, device=device, progress=progress)
    names = compared.train.label_names
    made = f"{compared.synthetic.table.num_rows} labelled texts"
    with noted_report(out, sources):
        files = build_report(
            out,
            title=TITLE_OF_EVALUATION,
            metrics=metrics,
            statement={},
            samples=records_of(compared.synthetic),
            about=About(made=made, label_names=names),
        )
        forget_rows(out, but=noted)
    # Whoever has registered rows since did not find the report yet, or was not told of by it.
    for source in sorted(_sources_of(digests) - sources):
        take_over(source, digests)
    return files, metrics


def report_files(out: Path) -> list[Path]:
    """What there is in a folder of a report, and of parts of it that a kill left."""
    drafts = [path for name in _FILES for path in sorted(out.glob(f".{name}.*"))]
    return [*(path for name in _FILES if (path := out / name).exists() or path.is_symlink()), *drafts]


def is_report_file(name: str) -> bool:
    """Whether a file of this name belongs to a report, or is a part of one that a kill left."""
    parts = (".writing-", *(f".{own}." for own in _FILES))
    return name in (*_FILES, SOURCES_FILE) or name.startswith(parts)


def check_evaluated_folder(out: Path) -> None:
    """Refuse a folder in which the report of an evaluation would be handed over, or would replace anything else.

    Raises:
        InputError: it cannot be written, belongs to a run, or holds a report that is not one of an evaluation.
    """
    check_outside_of_runs(out, out)
    found = [name for name in _FILES if os.path.lexists(out / name)]
    # A purge that was killed leaves the page alone, and beside it the file that says whose it is.
    is_ours = is_evaluation(out) if "report.json" in found else os.path.lexists(out / SOURCES_FILE)
    if found and not is_ours:
        raise InputError(
            f"--out {out}: expected a folder without a report, or with one of an earlier evaluation, found {found} of "
            "something else; choose another folder"
        )
    try_folder(out)


def check_report_folder(
    out: Path, *, noun: str, is_run: Callable[[str], bool], is_such: Callable[[Path], bool]
) -> None:
    """Refuse a folder for a report with its runs that cannot be written or holds something other than an earlier one.

    Args:
        out: the folder, which need not be there.
        noun: what the report is of, such as `an earlier audit`.
        is_run: whether a name is that of a run's folder in it.
        is_such: whether the report in a folder is of that kind.

    Raises:
        InputError: naming what was found.
    """
    check_outside_of_runs(out.absolute().parent, out)
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: expected a folder, found a file; choose another place")
    found = sorted(path.name for path in out.iterdir()) if out.exists() else []
    foreign = [name for name in found if not (name.startswith(PROBE) or is_report_file(name) or is_run(name))]
    if (out / "report.json").exists() and not is_such(out):
        foreign = ["report.json"]
    if foreign:
        raise InputError(
            f"--out {out}: expected an empty folder or one of {noun}, found {foreign[:3]}; choose an empty one"
        )
    try_folder(out)


def _sources_of(digests: Sequence[bytes]) -> set[str]:
    """The sources that rows of these digests are registered under; without a ledger there is none."""
    now = settings()
    begun = now.secret is not None or any((now.home / name).exists() for name in ("secret", "ledger.head"))
    if now.zone == "server" or not begun:
        return set()
    return set(Ledger.open().owners_of(digests).values())


@contextmanager
def noted_report(out: Path, sources: set[str]) -> Iterator[None]:
    """Within it a report of these sources is written; after a kill, one of an earlier call may be there instead."""
    with locked_folder(out, made=0o700):
        for source in sorted(sources):
            remember(out, source=source)
        earlier = sources_told(out)
        if sources or earlier is not None:
            tell_sources(out, sources | (earlier or set()))
        yield
        if sources or earlier is not None:
            tell_sources(out, sources)
