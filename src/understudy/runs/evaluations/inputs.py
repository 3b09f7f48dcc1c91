"""What an evaluation is made of: looked at before it begins, and the tables that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from understudy.artifacts.manifest import CONTENT_ID
from understudy.data.readers import check_source, same_source
from understudy.errors import InputError, ZoneError
from understudy.evaluation.tables import SAME_ROWS, ComparedTables, read_tables
from understudy.runs.checks.devices import gpu
from understudy.runs.checks.prefect_server import prefect_server
from understudy.runs.checks.tracking import tracking
from understudy.runs.evaluations.report import check_evaluated_folder
from understudy.runs.evaluations.request import EvaluateRequest
from understudy.runs.file_origin import ARTIFACT, RELEASED, change_of, named_in
from understudy.runs.handing_over import waiting
from understudy.settings import settings

# What the caller of a flow in this process has read, by the request.
_HANDED_OVER: dict[str, ComparedTables] = {}


def check_evaluation(request: EvaluateRequest) -> None:
    """Refuse what no evaluation can begin with; no table is read.

    Raises:
        ZoneError: this process belongs to the server zone.
        InputError: the folder cannot be written or holds something else, a name is that of no table, --real and --test
            are one, or a server or GPU is not there.
    """
    if settings().zone == "server":
        raise ZoneError(
            "evaluate reads real rows, which are in the client zone; this process has UNDERSTUDY_ZONE=server; evaluate "
            "where the rows are"
        )
    check_evaluated_folder(request.folder)
    for spec in (request.synthetic, request.real, request.test):
        check_source(spec)
    if same_source(request.real, request.test):
        raise InputError(SAME_ROWS)
    for look in (tracking, prefect_server, gpu):
        look()


def artifact_evaluated(request: EvaluateRequest) -> tuple[str | None, str]:
    """What the evaluated file is known to be, by its rows, which are read once for that.

    Returns:
        The id of the released table that it says it is, or of the model that it was drawn from; and what is to be said
        where it is not that table (`change_of`), or nothing. The id is None then, as it is of any other file and of one
        that names a private artifact: nobody knows whose rows are in it, so neither a digest of it nor its id may be
        told.
    """
    file = Path(request.synthetic).expanduser()
    if told := change_of(file):
        return None, f"{told}; the evaluation is recorded under the file's path alone"
    named = named_in(file, ARTIFACT) or named_in(file, RELEASED)
    return (named if named is not None and CONTENT_ID.fullmatch(named) else None), ""


@contextmanager
def handed_tables(request: EvaluateRequest) -> Iterator[None]:
    """Read and check the tables outside of the flow: an error names rows, which Prefect must not keep.

    The flow in the block finds them, and does not read them again.

    Raises:
        InputError: a table is not what is expected; a `RowError` where that tells of its rows.
    """
    with waiting(_HANDED_OVER, request.model_dump_json(), tables_of(request)):
        yield


def tables_of(request: EvaluateRequest) -> ComparedTables:
    """Read and check the tables of an evaluation, as they are now, unless the caller of the flow has done so.

    Raises:
        InputError: a table is not what is expected; a `RowError` where that tells of its rows.
    """
    if (handed := _HANDED_OVER.get(request.model_dump_json())) is not None:
        return handed
    return read_tables(
        request.synthetic,
        real=request.real,
        test=request.test,
        text_column=request.text_column,
        label_column=request.label_column,
        label_names=request.label_names,
    )
