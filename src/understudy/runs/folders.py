"""What a run leaves in DIR: `export/`, safe to hand over, and `internal/`, made from real rows and closed to others.

`placement` puts them in place.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from understudy.artifacts.access import ArtifactRef, path_of, read_table
from understudy.data.tables import named_labels
from understudy.errors import InputError, UnderstudyError
from understudy.locks import locked_folder
from understudy.reporting.kinds import told_of_another_kind
from understudy.runs.file_origin import ARTIFACT, RELEASED, named_in, with_origin
from understudy.runs.finished_folders import remember
from understudy.runs.placement import EXPORT, INTERNAL, check_no_export, leftovers, put_in_place

RUN_FILE = "run.json"
STATEMENT = "statement.json"
STATEMENT_IN_WORDS = "statement.md"
SYNTHETIC = "synthetic.parquet"

PROBE = ".understudy-probe-"


class RunRecord(BaseModel):
    """What DIR/internal/run.json remembers: enough to find everything again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str
    source: str
    charge_id: str
    label_names: tuple[str, ...]
    config: dict[str, Any]
    released: ArtifactRef
    synthetic: ArtifactRef
    metrics: ArtifactRef | None = None


def check_folder(out: Path, *, exports: bool) -> None:
    """Refuse a folder that cannot be written, holds something other than an earlier run's results, or has an export.

    Where results stand it need not be written: they may be this very run's. An export is refused that would outlive
    its run's results.

    Args:
        out: the folder.
        exports: whether the run will write an export, in the place of an earlier one.

    Raises:
        InputError: naming the folder and how to fix it.
    """
    check_outside_of_runs(out.absolute().parent, out)
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: expected a folder, found a file; choose another place")
    ours = {place.name for folder in (EXPORT, INTERNAL) for place in (out / folder, *leftovers(out / folder))}
    entries = [p.name for p in out.iterdir() if not p.name.startswith(PROBE)] if out.exists() else []
    foreign = [name for name in entries if name not in ours]
    if foreign:
        raise InputError(
            f"--out {out}: expected an empty folder or one of an earlier run, found {sorted(foreign)[:3]}; "
            "choose an empty one"
        )
    if not exports:
        check_no_export(out)
    if not (out / INTERNAL / RUN_FILE).exists():
        try_folder(out)


def check_outside_of_runs(place: Path, out: Path) -> None:
    """Refuse to write into what a run left, or below: export/ is handed over, and a run's folder has room for it alone.

    Args:
        place: where it would be written.
        out: as it was asked for.

    Raises:
        InputError: naming the run's folder.
    """
    real = Path(os.path.realpath(place))
    for folder in (real, *real.parents):
        marks = (folder / INTERNAL / RUN_FILE, folder / EXPORT / STATEMENT)
        # The last two: an export/ that was taken elsewhere.
        if any(map(os.path.isfile, marks)) or all(os.path.isfile(folder / name) for name in (STATEMENT, SYNTHETIC)):
            raise InputError(
                f"--out {_short(out)}: expected a folder of its own, found the one of a run, {_short(folder)}, whose "
                f"{EXPORT}/ is handed over; choose one outside of it"
            )


def try_folder(out: Path) -> str:
    """Do in `out` what an export does later, on a small scale, and leave everything as it was.

    Returns:
        What was found, in words.

    Raises:
        InputError: naming the folder and what the system said.
    """
    try:
        closed = probe_folder(out)
    except OSError as error:
        raise InputError(
            f"--out {_short(out)}: expected a folder that can be made and written, found: "
            f"{error.strerror or type(error).__name__}; choose another place or fix its permissions"
        ) from None
    if not closed:
        raise InputError(
            f"--out {_short(out)}: expected a file system on which a folder can be closed to others (mode 0700), as "
            f"{INTERNAL}/ must be; choose another place"
        )
    return "writable"


def probe_folder(folder: Path) -> bool:
    """Make `folder`, fill and rename a folder in it, and remove all that was made.

    Returns:
        Whether a folder made there is closed to others when asked for.

    Raises:
        OSError: of the first step that fails.
    """
    made: list[Path] = []
    probe = folder / f"{PROBE}{secrets.token_hex(8)}"
    renamed = probe.with_name(f"{probe.name}.new")
    try:
        for part in reversed((folder, *folder.parents)):
            if not part.exists():
                part.mkdir(exist_ok=True)
                made.append(part)
        probe.mkdir(mode=0o700)
        with (probe / "file").open("wb") as file:
            file.write(b"written")
            file.flush()
            os.fsync(file.fileno())
        probe.rename(renamed)
        with locked_folder(folder):
            return renamed.stat().st_mode & 0o077 == 0
    finally:
        for path in (probe, renamed):
            shutil.rmtree(path, ignore_errors=True)
        for part in reversed(made):
            with contextlib.suppress(OSError):  # another run has put something there
                part.rmdir()


def _short(path: Path) -> str:
    return text if len(text := str(path)) <= 200 else f"{text[:100]}...{text[-50:]}"


@dataclass(frozen=True)
class StatementFiles:
    """A privacy statement as DIR/export shows it.

    Attributes:
        facts: for statement.json.
        words: for statement.md.
    """

    facts: Mapping[str, Any]
    words: str


def write_results(
    out: Path,
    record: RunRecord,
    fill_report: Callable[[Path], None],
    *,
    statement: StatementFiles | None,
    shares_real_rows: bool = False,
    placed: Callable[[], None] = lambda: None,
) -> None:
    """Write DIR/export and DIR/internal, both or neither.

    export/ gets synthetic.parquet, statement.json, statement.md and, under its kind, what was released. What `generate`
    drew beside them is kept as long as the release is the one it was drawn from. internal/ gets the report, run.json,
    and the synthetic table where it may not be exported.

    Args:
        out: the run's folder.
        record: of the run.
        fill_report: writes the report into the folder that becomes internal/.
        statement: the run's privacy statement; None where nothing is exported.
        shares_real_rows: the user said in so many words that private artifacts may be written into export/.
        placed: called when both are in place and no other run has touched them yet.

    Raises:
        UnderstudyError: when anything to export is not released or public: nothing is written then.
        InputError: nothing is exported, and the export of another run stands there.
    """
    for ref in (record.released, record.synthetic):
        if statement is not None and ref.label.kind == "private" and not shares_real_rows:
            raise UnderstudyError(f"artifact {ref.id} is {ref.label}: only public and released ones are exported")

    def fill_internal(folder: Path) -> None:
        _fill_internal(folder, out, record)
        fill_report(folder)

    fill_export = None if statement is None else partial(_fill_export, out=out, record=record, statement=statement)
    put_in_place(out, fill_internal, fill_export=fill_export, placed=placed)


def _fill_export(folder: Path, *, out: Path, record: RunRecord, statement: StatementFiles) -> None:
    remember(out, source=record.source)
    for path in _further_draws(out, record):
        shutil.copy2(path, folder)
    _write_synthetic(folder, record)
    (folder / STATEMENT).write_text(json.dumps(statement.facts, indent=2) + "\n")
    (folder / STATEMENT_IN_WORDS).write_text(statement.words)
    _copy_folder(path_of(record.released), folder / record.released.kind)


def _fill_internal(folder: Path, out: Path, record: RunRecord) -> None:
    remember(out, source=record.source)
    (folder / RUN_FILE).write_text(record.model_dump_json(indent=2) + "\n")
    if record.synthetic.label.kind == "private":
        _write_synthetic(folder, record)


def _write_synthetic(folder: Path, record: RunRecord) -> None:
    """The synthetic table, as a file that says what it is wherever it is taken."""
    table = named_labels(read_table(record.synthetic), record.label_names)
    ids = {ARTIFACT: record.synthetic.id, RELEASED: record.released.id}
    pq.write_table(with_origin(table, ids), folder / SYNTHETIC)


def _copy_folder(source: Path, target: Path) -> None:
    """Copy an artifact without its manifest; the first error ends it, as `copytree`'s own error has no number."""
    target.mkdir()
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir()
        elif path != source / "manifest.json":
            shutil.copy2(path, copy)


def _further_draws(out: Path, record: RunRecord) -> list[Path]:
    """What was drawn later from the model in DIR/export, if that is the model of `record`."""
    try:
        earlier = read_record(out)
    except InputError:  # nothing there, or of another version: then the release is another one too
        return []
    return sorted((out / EXPORT).glob("synthetic-*.parquet")) if earlier.released == record.released else []


def read_record(out: Path) -> RunRecord:
    """The record of a finished run.

    Raises:
        InputError: when the folder holds no finished run.
    """
    path = out / INTERNAL / RUN_FILE
    if not path.is_file():
        raise InputError(
            f"{out}: expected the --out folder of a finished run, found no {INTERNAL}/{RUN_FILE}"
            f"{told_of_another_kind(out)}"
        )
    try:
        return RunRecord.model_validate_json(path.read_text())
    except ValidationError as error:
        raise InputError(f"{path}: {error.errors()[0]['msg']}; run again the command that made this folder") from None


def artifact_in(place: Path) -> str:
    """The id of the synthetic table that a run left in a folder, its export/ or an exported file.

    For a file of further texts it is the id of what they were drawn from.

    Raises:
        InputError: nothing there says which artifact it holds.
    """
    unread: Exception | None = None
    if (place / INTERNAL).is_dir():
        try:
            return read_record(place).synthetic.id
        except (InputError, PermissionError) as error:
            unread = error
    # Of a purged run's folder the export alone is left, and of one of another user it alone may be read.
    folder = place / EXPORT if (place / EXPORT).is_dir() else place
    file = folder / SYNTHETIC if place.is_dir() else place
    named = named_in(file, ARTIFACT) or named_in(file, RELEASED)
    if named is None and isinstance(unread, InputError):
        raise unread
    if named is None:
        found = "nothing that names an artifact" if unread is None else f"an {INTERNAL}/ that may not be read"
        raise InputError(
            f"{place}: expected the --out folder of a finished run, its {EXPORT}/ or a Parquet file of `run` or "
            f"`generate`, found {found}; give its id, as statement.json or MLflow shows it"
            f"{told_of_another_kind(place)}"
        )
    return named
