"""The Python API: the same flows as the command line, with tables in and tables out.

>>> import understudy                                     # doctest: +SKIP
>>> result = understudy.synthesize(table, source="reviews", epsilon=3, out="out", budget=(8, 1e-5))  # doctest: +SKIP
>>> result.synthetic.to_pylist()[0]                       # doctest: +SKIP
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from understudy.data.readers import check_source
from understudy.durable import is_of_disk
from understudy.errors import InputError, UnderstudyError
from understudy.evaluation.metrics import Metrics
from understudy.lazy import load
from understudy.locks import is_current, locked_folder
from understudy.methods import registry
from understudy.runs.folders import RunRecord, read_record
from understudy.runs.placement import EXPORT, INTERNAL
from understudy.runs.request import request_of
from understudy.settings import prepare_environment, private_directory, settings

# A table of pyarrow, pandas, polars or datasets: none of the last three is needed, so none can be named here.
Table = Any

# Core imports no flow: they are found by name when they are called.
_SERVER = "understudy.flows.temporary_server:start_in_turn"


@dataclass(frozen=True)
class Result:
    """What a run left behind.

    Attributes:
        synthetic: columns `text` and, where the rows have labels, `label`; or `instruction` and `response`.
        statement: the privacy statement; stable keys first.
        metrics: computed from real rows, so not to be handed over.
        folder: the run's folder with `export/` and `internal/`.
    """

    synthetic: pa.Table = field(repr=False)
    statement: dict[str, Any]
    metrics: Metrics
    folder: Path


def synthesize(
    data: Table | str | Path,
    *,
    source: str,
    out: str | Path,
    epsilon: float | None = None,
    method: str = "conditional-generation",
    budget: tuple[float, float] | None = None,
    test: Table | str | Path | None = None,
    **options: Any,
) -> Result:
    """Make a synthetic table from a private one; charges `source` exactly as the command line would.

    Args:
        data: private rows: a table (of pyarrow, pandas, polars or datasets), a file, `hub:OWNER/NAME` or
            `sample:NAME`.
        source: name under which these rows keep their budget.
        out: folder for export/ and internal/.
        epsilon: of this run; inf gives private output. None where the method runs without one.
        method: as on the command line.
        budget: (epsilon, delta) of the source, on its first use.
        test: real rows for measuring only; None holds out about one unit in ten.
        **options: further fields of `RunRequest`, such as label_names, units, profile, model, samples, overrides.

    Raises:
        InputError: the input is wrong; nothing was charged.
        BudgetRefused: the source's budget does not allow the charge.
        UnderstudyError: another run has put its results into `out` since.
    """
    from understudy.runs.registration import handed_over, register
    from understudy.runs.validation import validate

    chosen = registry.get(method)
    prepare_environment()
    with _as_files({"data": data, "test": test}) as files:
        request = request_of(
            {
                **options,
                **files,
                "source": source,
                "epsilon": epsilon,
                "out": str(out),
                "budget": {"epsilon": budget[0], "delta": budget[1]} if budget else None,
            }
        )
        folder = Path(request.out).expanduser().absolute()
        request = request.model_copy(update={"out": str(folder)})
        # Whatever Prefect is handed, it keeps and shows.
        for spec in (request.data, request.test):
            if spec is not None:
                check_source(spec)
        # Outside of the flow: an error names rows, which Prefect must not keep.
        with handed_over(request, register(validate(request, method))):
            load(_SERVER)()
            ended = load(chosen.flow)(request)
    return _loaded(folder, expected=ended.synthetic)


def load_result(folder: str | Path) -> Result:
    """The result of a finished run, from its folder.

    Raises:
        InputError: when the folder holds no finished run.
    """
    return _loaded(Path(folder))


def _loaded(folder: Path, *, expected: str = "") -> Result:
    """The result in a folder, of one run: that which made the artifact `expected`, or any."""
    with locked_folder(folder) if folder.is_dir() else nullcontext():
        record = read_record(folder)
        if expected not in ("", record.synthetic.id):
            raise UnderstudyError(
                f"out={folder}: expected the results of this run, found another one's, which took the folder over "
                "since; call again with a folder of its own, which charges nothing"
            )
        return _read(folder, record)


def _read(place: Path, record: RunRecord) -> Result:
    import json

    exported = (place / EXPORT / "synthetic.parquet").is_file() and record.released.label.kind != "private"
    table = pq.read_table(place / (EXPORT if exported else INTERNAL) / "synthetic.parquet")
    report = json.loads((place / INTERNAL / "report.json").read_text())
    metrics = Metrics.model_validate(
        {key: report[key] for key in ("intervals", "missing", "declared")} | {"values": report["metrics"]}
    )
    return Result(synthetic=table, statement=report["statement"], metrics=metrics, folder=place)


@contextmanager
def _as_files(tables: dict[str, Table | str | Path | None]) -> Iterator[dict[str, str | None]]:
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
            if not _written(given, path):
                kind = f"{type(given).__module__}.{type(given).__qualname__}"
                raise InputError(
                    f"{name}: expected a pyarrow, pandas or polars table, a datasets.Dataset, a path, "
                    f"hub:OWNER/NAME or sample:NAME, found {kind}, or one whose columns Arrow cannot hold; give each "
                    "column one type"
                )
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


def _written(given: object, path: Path) -> bool:
    """Write a table to a Parquet file; False where it is none. No error but a disk's is passed on: Arrow's show values.

    Raises:
        OSError: the disk is full or fails; it names the file.
    """
    try:
        table = _to_arrow(given)
        if table is not None:
            pq.write_table(table, path)
    except Exception as error:  # of any library: Arrow, pandas, polars, datasets
        if isinstance(error, OSError) and is_of_disk(error):
            raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from None
        return False
    return table is not None


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
