"""Reading a source: CSV, JSON Lines, Parquet, a shipped sample or a Hugging Face data set.

Every refusal names a row index (from 0, the header not counted) and, where a file has lines, the line that the row
begins on (from 1), or a byte offset, never a text. CSV has no
types, so all its columns are strings; an empty field is the empty string, but a row of several fields that are all
empty is a row of nulls. A blank line is no row.
"""

import codecs
import csv
import io
import json
import re
import sys
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from understudy.data.columns import IN_EACH_ROW, NAMES_STAND
from understudy.data.hub import DEFAULT_SPLIT, HUB, read_hub
from understudy.errors import InputError, RowError
from understudy.shipped import SAMPLES

SAMPLE = "sample:"
_WORDS = 4
_LONG = 1_000
# In this order: the mark of little-endian UTF-32 begins with that of UTF-16.
_WIDE_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_PACKED_MARKS = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2"}
# What other programs write between the columns of a CSV file, and what it is called.
_OTHER_MARKS = {";": "semicolons", "\t": "tabs"}
_LINES = "write each row as one object in a line, for example with pandas: to_json(FILE, orient='records', lines=True)"
_JSON_KINDS = {list: "a list", str: "a text", bool: "a boolean", type(None): "null"} | dict.fromkeys(
    (int, float), "a number"
)
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+(#\w+)?")
# As of file: and of the web; a text may have a colon, too, and no path of a file begins so.
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://\S", re.IGNORECASE)


def read_source(spec: str) -> pa.Table:
    """Read the table that `spec` names.

    Args:
        spec: a `.csv`, `.jsonl` or `.parquet` file, `sample:NAME`, or `hub:OWNER/NAME` with an optional `#SPLIT`
            (default `train`). Only the last is ever asked of a network (ADR 0029).

    Returns:
        The table with at least one row.

    Raises:
        InputError: when it is missing, unreadable or of an unknown type.
        RowError: when there is no row, or one is broken: bad encoding, wrong number of fields, mixed types. Or a CSV
            file's header line is wrong, which in a file without one is a row.
    """
    table = _reader(spec)()
    if table.num_rows == 0:
        raise RowError(f"{spec}: expected at least one row, found an empty table")
    return table


def check_source(spec: str) -> None:
    """Refuse what cannot name a table, without reading it.

    Raises:
        InputError: see `read_source`.
    """
    _reader(spec)


def same_source(spec: str, other: str) -> bool:
    """Whether two names are of one table, however they are written."""
    if spec == other or _with_split(spec) == _with_split(other):
        return True
    paths = [Path(name).expanduser() for name in (spec, other)]
    return all(path.is_file() for path in paths) and paths[0].samefile(paths[1])


def _with_split(spec: str) -> str:
    """A data set of the hub with the split that is read of it; other names as they are."""
    return f"{spec}#{DEFAULT_SPLIT}" if spec.startswith(HUB) and "#" not in spec else spec


def _reader(spec: str) -> Callable[[], pa.Table]:
    if spec.startswith(SAMPLE):
        return lambda: _read_sample(spec.removeprefix(SAMPLE))
    # So many words are a text, most likely, and a text may be private.
    shown = spec if spec.count(" ") < _WORDS and len(spec) < _LONG else f"a text of {len(spec)} characters"
    if spec.startswith(HUB):
        if not _HUB_ID.fullmatch(spec.removeprefix(HUB)):
            raise InputError(f"{shown}: expected {HUB}OWNER/NAME or {HUB}OWNER/NAME#SPLIT; correct the name")
        return lambda: read_hub(spec)
    if _ADDRESS.match(spec):
        raise InputError(
            f"{shown}: expected the path of a file, found an address; fetch the file to this machine and name its path"
        )
    readers = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
    try:
        path = Path(spec).expanduser()
        is_file, is_folder = path.is_file(), path.is_dir()
    except PermissionError as error:
        raise InputError(f"{shown}: cannot be looked at: {error.strerror}; fix the permissions of its folder") from None
    except (OSError, RuntimeError):  # a name that is too long, a home folder of nobody
        raise InputError(f"{shown}: expected the path of a file, found one that no file can have") from None
    reader = readers.get(path.suffix.lower())
    if is_file and reader is not None:
        return lambda: reader(path)
    if is_file or (path.suffix and not is_folder and reader is None and "/" not in spec):
        found = path.suffix if shown == spec else "another"
        raise InputError(
            f"{shown}: expected a file ending in {', '.join(readers)}, found {found!r}; convert it to one of them"
        )
    if is_folder:
        raise InputError(f"{shown}: expected a file, found a directory; name the file inside it")
    here = "" if path.is_absolute() else f" in {Path.cwd()}"
    is_bare_id = reader is None and _HUB_ID.fullmatch(spec)
    meant = f", or write {HUB}{spec} if a data set of the hub is meant" if is_bare_id else ""
    raise InputError(
        f"{shown}: expected a file, sample:NAME or {HUB}OWNER/NAME, found no such file{here}; check the path{meant}"
    )


def _read_sample(name: str) -> pa.Table:
    path = SAMPLES / f"{name}.parquet"
    names = sorted(p.stem for p in SAMPLES.glob("*.parquet"))
    if name not in names:
        raise InputError(f"sample:{name}: expected one of {', '.join(f'sample:{n}' for n in names)}")
    return _read_parquet(path)


def _read_parquet(path: Path) -> pa.Table:
    try:
        return pq.read_table(path).replace_schema_metadata(None)
    except (pa.ArrowException, OSError) as error:
        if not _names_differ(path):
            raise InputError(
                f"{path}: expected distinct column names, found one that comes twice; name each column once"
            ) from None
        found = getattr(error, "strerror", None) or "one that is damaged or of another kind; write it again"
        raise InputError(f"{path}: expected a Parquet file, found {found}") from None


def _names_differ(path: Path) -> bool:
    """Whether each name of a Parquet file's columns comes once; of another file, there is none to come twice."""
    try:
        names = pq.read_schema(path).names
    except (pa.ArrowException, OSError):
        return True
    return len(set(names)) == len(names)


def _read_csv(path: Path) -> pa.Table:
    csv.field_size_limit(sys.maxsize)
    rows = csv.reader(io.StringIO(_read_text(path), newline=""), strict=True)
    header = _header_of(path, rows)
    columns: list[list[str | None]] = [[] for _ in header]
    index, line = 0, rows.line_num + 1
    try:
        for row in rows:
            if row and len(row) != len(header):
                raise RowError(
                    f"{path}: row {index} (line {line}): expected {len(header)} fields, found {len(row)}; put quotes "
                    "around a text that holds a comma, and fill or remove a row that is too short"
                )
            null = len(row) > 1 and not any(row)
            for column, value in zip(columns, row, strict=False):  # a blank line has no value
                column.append(None if null else value)
            index, line = index + bool(row), rows.line_num + 1
    except csv.Error as error:
        raise RowError(f"{path}: row {index} (line {line}): {error}; check the quotes") from None
    table = pa.table({name: pa.array(column, pa.string()) for name, column in zip(header, columns, strict=True)})
    return table.replace_schema_metadata({NAMES_STAND: "the first line of a CSV file holds the names"})


def _header_of(path: Path, rows: Iterator[list[str]]) -> list[str]:
    """The names of a CSV file's columns, on its first line that is not blank."""
    try:
        header = next(filter(None, rows), None)
    except csv.Error as error:
        raise RowError(f"{path}: header line: {error}; check the quotes") from None
    if header is None:
        raise RowError(f"{path}: expected a header line with column names, found an empty file")
    if len(set(header)) != len(header):
        raise RowError(
            f"{path}: expected distinct column names, found {len(set(header))} for {len(header)} columns; name each "
            "column once in the header line, and write that line first if the file has none"
        )
    other = next((name for mark, name in _OTHER_MARKS.items() if len(header) == 1 and mark in header[0]), None)
    if other is not None:
        raise RowError(
            f"{path}: expected commas between the columns, found {other} in the header line; write it with commas, for "
            "example with pandas: read_csv(FILE, sep=None).to_csv(OTHER, index=False)"
        )
    return header


class _NamedTwice(ValueError):
    """An object of JSON has two values of one name, of which a reader would keep the last and say nothing."""


def _each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise _NamedTwice
    return row


def _read_jsonl(path: Path) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(_read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        here = f"{path}: row {len(rows)} (line {number}): expected a JSON object"
        try:
            row = json.loads(line, object_pairs_hook=_each_name_once)
        except _NamedTwice:
            raise RowError(f"{here} with each name once, found one twice; leave one of both out") from None
        except ValueError:
            raise RowError(f"{here} in each line, found something else; {_LINES}") from None
        except RecursionError:
            raise RowError(f"{here} of texts and numbers, found one nested too deep; flatten it") from None
        if not isinstance(row, dict):
            raise RowError(f"{here}, found {_JSON_KINDS[type(row)]}; {_LINES}")
        rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: _column(path, name, [row.get(name) for row in rows]) for name in names})
    return table.replace_schema_metadata({NAMES_STAND: IN_EACH_ROW})


def _column(path: Path, name: str, values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except UnicodeEncodeError:
        row = next(i for i, value in enumerate(values) if isinstance(value, str) and not _is_utf8(value))
        raise RowError(
            f"{path}: row {row}: column {name!r} is not valid Unicode (a lone surrogate, as of an emoji that was "
            "cut in half); correct or remove the row"
        ) from None
    except (pa.ArrowException, OverflowError):
        row, found = _odd_value(values)
        raise RowError(
            f"{path}: row {row}: column {name!r} holds {found}; give the column one type, or drop it"
        ) from None


def _odd_value(values: Sequence[Any]) -> tuple[int, str]:
    """Which value keeps a column from having one type, and what it is in words; never the value itself."""
    long = next((i for i, value in enumerate(values) if isinstance(value, int) and not _fits(value)), None)
    if long is not None:
        return long, "an integer beyond 64 bits"
    kinds = [None if value is None else type(value).__name__ for value in values]
    first = next(kind for kind in kinds if kind is not None)
    row = next((i for i, kind in enumerate(kinds) if kind not in (None, first)), None)
    if row is not None:
        return row, f"{kinds[row]}, rows before it hold {first}"
    # One kind in each row, so it is a nested one: the first row that has no type in common with those before it.
    row = bisect(range(len(values)), False, key=lambda last: not _has_type(values[: last + 1]))
    return row, f"{'a list' if first == 'list' else 'an object'} of mixed types, or with an integer beyond 64 bits"


def _fits(value: int) -> bool:
    return -(2**63) <= value < 2**63


def _has_type(values: Sequence[Any]) -> bool:
    try:
        pa.array(values)
    except (pa.ArrowException, OverflowError):
        return False
    return True


def _read_text(path: Path) -> str:
    """The file as text, without a byte order mark; Windows line ends become plain ones."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wide = next((name for mark, name in _WIDE_MARKS.items() if raw.startswith(mark)), None)
        if wide is not None:
            raise RowError(
                f"{path}: expected UTF-8, found the byte order mark of {wide}; convert it: iconv -f {wide} -t UTF-8"
            ) from None
        packed = next((name for mark, name in _PACKED_MARKS.items() if raw.startswith(mark)), None)
        if packed is not None:
            raise RowError(f"{path}: expected text, found what {packed} has packed; unpack it") from None
        line = raw.count(b"\n", 0, error.start) + 1
        raise RowError(
            f"{path}: expected UTF-8, found an invalid byte at offset {error.start} (line {line}); "
            f"convert it, for example: iconv -f LATIN1 -t UTF-8"
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise RowError(
            f"{path}: expected text, found a NUL character in line {line}; remove it, or write the file again"
        )
    return text.replace("\r\n", "\n")


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
