"""More text from what a run exported: post-processing, so nothing is charged and no private row is read."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from understudy.durable import remove_parts, write_new
from understudy.errors import InputError
from understudy.lazy import load
from understudy.locks import locked_folder
from understudy.methods import registry
from understudy.methods.further import FurtherDraw
from understudy.progress import Progress
from understudy.quantities import Count, CountOrZero
from understudy.reporting.kinds import told_of_another_kind
from understudy.runs.file_origin import RELEASED, named_in, with_origin
from understudy.runs.folders import RUN_FILE, STATEMENT, SYNTHETIC, check_outside_of_runs
from understudy.runs.placement import EXPORT, INTERNAL

# Streams of the run's own draw are named by its public seed; further draws start at a seed of their own.
_SEED_STEP = 1_000_003


def generate_more(
    origin: Path, *, samples: int, out: Path | None = None, draw: int = 1, progress: Progress | None = None
) -> tuple[Path, int]:
    """Draw further rows from DIR/export.

    Args:
        origin: the --out folder of a run, or its export folder, wherever it was taken.
        samples: rows wanted.
        out: Parquet file, which names what it was drawn from; default `synthetic-SAMPLES-DRAW.parquet` beside the
            exported one.
        draw: number of this further draw: another number gives other texts, the same number the same texts; 0 is the
            run's own.
        progress: called with (rows drawn, rows).

    Returns:
        The file, and how many rows it holds.

    Raises:
        InputError: when a number is out of bounds, nothing was exported, the method releases nothing to draw from, or
            the file exists, is no Parquet file by its name, cannot be written or would lie in the folder of another
            run.
    """
    _check_number("samples", samples, Count)
    _check_number("draw", draw, CountOrZero)
    folder = origin / EXPORT if (origin / EXPORT).is_dir() else origin
    statement = _read(folder / STATEMENT)
    if statement is None and os.path.lexists(folder / STATEMENT):
        raise InputError(
            f"--from {origin}: expected the privacy statement of a run in {folder / STATEMENT}, found something "
            "else; restore it, or repeat the `understudy run` command that made it, which writes it anew"
        )
    if statement is None:
        raise InputError(
            f"--from {origin}: expected the --out folder of a finished run, or its {EXPORT}/ with {STATEMENT}, "
            f"found neither{told_of_another_kind(origin)}"
        )
    if not isinstance(statement.get("method"), str):
        raise InputError(
            f"--from {origin}: {folder / 'statement.json'} names no method, as those of earlier versions; repeat the "
            "`understudy run` command that made it, which writes the statement anew"
        )
    record = _record_of(statement, folder)
    method = registry.get(statement["method"])
    if not method.generate:
        raise InputError(
            f"--from {origin}: expected a run that left a model to draw from, found one of {method.name}, which leaves "
            "none; for more texts repeat its `understudy run` command with a larger --samples: what it learned from "
            "private rows is kept, so that charges nothing"
        )
    path = out or folder / f"synthetic-{samples}-{draw}.parquet"
    _check_writable(path)
    if not path.parent.samefile(folder):  # beside the statement of another run they would pass for that one's
        check_outside_of_runs(path.parent, path)
    released = _released_by(folder, record)
    further: Callable[[FurtherDraw], pa.Table] = load(method.generate)
    asked = FurtherDraw(folder, record, samples=samples, seed_step=draw * _SEED_STEP, progress=progress)
    with _said_of(origin, folder):
        table = further(asked)
    # So that no run puts another release into the folder between the look and the writing.
    with locked_folder(folder.absolute().parent):
        remove_parts(folder, ending=".parquet")
        if _released_by(folder, _record_of(_read(folder / STATEMENT) or {}, folder)) != released:
            raise InputError(
                f"--from {origin}: expected the model that texts were being drawn from, found another run's or none: "
                "the folder was taken over meanwhile. Nothing was written; run again to draw from what lies there now"
            )
        _check_writable(path)
        _write(path, table, drawn_from=released)
    return path, table.num_rows


@contextmanager
def _said_of(origin: Path, folder: Path) -> Iterator[None]:
    """What is wrong with a file of the export is said of the option that named the folder."""
    option = f"--from {origin}"
    try:
        yield
        return
    except InputError as error:
        told = str(error)
        if told.startswith("--from ") or str(folder) not in told:
            raise
    raise InputError(f"{option}: {told}")


def _check_number(option: str, value: int, kind: Any) -> None:
    """Refuse what the settings of a run would refuse."""
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise InputError(f"--{option} {value}: {error.errors()[0]['msg']}") from None


def _check_writable(path: Path) -> None:
    """Refuse, before texts are drawn for minutes, a file that could not be written or is not what its name says."""
    if path.suffix.lower() != ".parquet":
        raise InputError(
            f"--out {path}: expected a file ending in .parquet, found {path.suffix or 'no ending'!r}; name it so, and "
            "for another format convert it, for example with pandas: read_parquet(FILE).to_csv(OTHER, index=False)"
        )
    if path.exists():
        raise InputError(f"{path} exists: name another file with --out, nothing was overwritten")
    if not path.parent.is_dir():
        raise InputError(
            f"{path}: expected a folder to write into, found none at {path.parent}; make it, or name another "
            "file with --out"
        )
    if not os.access(path.parent, os.W_OK):
        raise InputError(
            f"{path}: expected a folder that you can write, found {path.parent}; name another file with --out"
        )
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise InputError(
            f"{path}: expected a folder that a file can be made in, found {path.parent}: {error.strerror}; name "
            "another file with --out"
        ) from None


def _released_by(folder: Path, record: dict[str, Any] | None) -> str | None:
    """The id of what the run released: its exported table holds it, but for those of earlier versions."""
    told = named_in(folder / SYNTHETIC, RELEASED)
    return told if told or record is None else record.get("released", {}).get("id")


def _write(path: Path, table: pa.Table, *, drawn_from: str | None) -> None:
    """Write further texts, whole or not at all."""
    named = with_origin(table, {RELEASED: drawn_from}) if drawn_from else table.replace_schema_metadata(None)
    write_new(path, lambda file: pq.write_table(named, file))


def _record_of(statement: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    """`internal/run.json` beside the export, if it is of the run that exported it."""
    record = _read(folder.absolute().parent / INTERNAL / RUN_FILE)
    charges = {entry.get("id") for entry in statement.get("ledger_entries", [])}
    return record if record and record.get("charge_id") in charges else None


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON object; one that is missing or broken says nothing, and whoever needs it refuses."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
