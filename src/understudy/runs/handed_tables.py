"""Tables that a program hands over, as files for the time of a run: a run's request names files, and holds no rows."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from understudy.durable import is_of_disk
from understudy.errors import InputError
from understudy.locks import is_current
from understudy.settings import private_directory, settings

# A table of pyarrow, pandas, polars or datasets: none of the last three is needed, so none can be named here.
Table = Any


@contextmanager
def as_files(tables: Mapping[str, Table | str | Path | None]) -> Iterator[dict[str, str | None]]:
    """Tables as files under the private root for the time of a run; names and paths pass through.

    The same tables have the same paths, which are part of the request: a call that is repeated after a kill is the
    same run.

    Raises:
        InputError: for anything else, named by its type alone.
    """
    fresh = private_directory(settings().temporary_root / f"inbox-{secrets.token_hex(8)}")
    paths: dict[str, str | None] = {}
    written: list[Path] = []
    try:
        for name, given in tables.items():
            if given is None or isinstance(given, (str, Path)):
                paths[name] = None if given is None else str(given)
                continue
            path = fresh / f"{name}.parquet"
            if (fault := _fault_in_writing(name, given, path)) is not None:
                raise InputError(fault)
            written.append(path)
        if not written:
            yield paths
            return
        with _inbox(settings().temporary_root / _inbox_name(written)) as inbox:
            for path in written:
                paths[path.stem] = str(path.replace(inbox / path.name))
            yield paths
    finally:
        # `understudy gc` may have taken it away already.
        shutil.rmtree(fresh, ignore_errors=True)


def _inbox_name(files: Sequence[Path]) -> str:
    """The same for the same files. Keyed, for a request is shown, and a plain digest would tell what the rows are."""
    from understudy.privacy.ledger.ledger import Ledger

    parts: list[str | bytes] = []
    for path in files:
        with path.open("rb") as file:
            parts += [path.stem, hashlib.file_digest(file, "sha256").digest()]
    return f"inbox-{Ledger.open().request_key('inbox', *parts)[:32]}"


@contextmanager
def _inbox(folder: Path) -> Iterator[Path]:
    """A folder that calls with the same tables share; the last of them removes it, or the next after a kill."""
    while True:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if is_current(descriptor, folder):
            break
        # The last call, or `understudy gc`, removed the folder between our look and our lock.
        os.close(descriptor)
    try:
        yield folder
    finally:
        # Refused while another call reads there.
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_current(descriptor, folder):
                shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _fault_in_writing(name: str, given: object, path: Path) -> str | None:
    """Write a table to a Parquet file, or say what is wrong with it.

    No other error than a disk's is passed on: Arrow's show values.

    Raises:
        OSError: the disk is full or fails; it names the file.
    """
    kind = f"{type(given).__module__}.{type(given).__qualname__}"
    columns = _column_names(given)
    if columns is not None and len(set(columns)) != len(columns):
        return (
            f"{name}: expected distinct column names, found {len(set(columns))} for {len(columns)} columns; name each "
            "column once"
        )
    try:
        table = _to_arrow(given)
        if table is not None and table.num_rows:
            pq.write_table(table, path)
            return None
    except Exception as error:  # of any library: Arrow, pandas, polars, datasets
        if isinstance(error, OSError) and is_of_disk(error):
            raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from None
        table = None
    if table is not None:
        return f"{name}: expected at least one row, found an empty table"
    if columns is not None:
        return (
            f"{name}: expected columns that Arrow can hold, found a {kind} with one that it cannot; give each column "
            "one type, or hand over no other columns than those that are read"
        )
    return (
        f"{name}: expected a pyarrow, pandas or polars table, a datasets.Dataset, a path, hub:OWNER/NAME or "
        f"sample:NAME, found {kind}; make such a table of it"
    )


def _column_names(given: object) -> list[str] | None:
    """The names of a table's columns; None of what has none, such as a single column, or several tables by split."""
    names = getattr(given, "column_names", getattr(given, "columns", None))
    return None if names is None or isinstance(given, Mapping) else [str(name) for name in names]


def _to_arrow(given: object) -> pa.Table | None:
    """Any kind of table as one of Arrow's, with plain strings; None for what is no table."""
    if isinstance(given, pa.Table):
        return given
    if hasattr(given, "__arrow_c_stream__"):
        table = pa.table(given)
    elif type(given).__module__.partition(".")[0] == "datasets" and hasattr(given, "with_format"):
        table = given.with_format("arrow")[:]
    elif hasattr(given, "__dataframe__"):
        from pyarrow.interchange import from_dataframe

        table = from_dataframe(given)
    else:
        return None
    # Polars hands out string views, which not every version of Parquet's writer takes.
    plain = [field.with_type(pa.large_string()) if field.type == pa.string_view() else field for field in table.schema]
    return table.cast(pa.schema(plain)).replace_schema_metadata(None)
