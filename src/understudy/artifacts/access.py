"""Artifacts: references that verify themselves, and the two stores behind them.

Everything that crosses from one task to the next is an `ArtifactRef`. The *exchange* store holds public and
released artifacts under their content address, so that two writers of the same content end with one; the
*private* store holds private ones under random ids, in directories of mode 0700, matched by HMAC. An artifact
is written beside its place, its manifest last, and then renamed: a crash leaves nothing half-written.

    with store_for(label).write(kind="model", label=label, parents=[data]) as draft:
        save_file(tensors, draft.path / "model.safetensors")
    return draft.ref
"""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from understudy.artifacts.manifest import canonical_json
from understudy.artifacts.reference import ArtifactRef, path_of, private_place
from understudy.artifacts.store import ArtifactStore, Draft
from understudy.errors import ArtifactDamaged, InputError, ZoneError
from understudy.privacy.labels import Label
from understudy.settings import settings

__all__ = [
    "ArtifactRef",
    "ArtifactStore",
    "Draft",
    "exchange_store",
    "path_of",
    "private_store",
    "purge",
    "read_json",
    "read_table",
    "row_count",
    "store_for",
    "write_json",
    "write_table",
]

TABLE = "table.parquet"
VALUE = "value.json"


def private_store() -> ArtifactStore:
    """The private store of this user.

    Raises:
        ZoneError: in the server zone.
    """
    if settings().zone == "server":
        raise ZoneError(
            "the private store is in the client zone; this process has UNDERSTUDY_ZONE=server; run this there, or "
            "unset UNDERSTUDY_ZONE to run both zones here"
        )
    return ArtifactStore(private_place(), "private")


def exchange_store() -> ArtifactStore:
    """The store of public and released artifacts, shared by both zones."""
    return ArtifactStore(settings().exchange, "exchange")


def store_for(label: Label) -> ArtifactStore:
    """The store where an artifact with `label` belongs."""
    return private_store() if label.kind == "private" else exchange_store()


def purge(source: str, *, charges: Collection[str]) -> list[str]:
    """Remove everything derived from the rows of `source`, in both stores; returns the ids removed.

    Args:
        source: its name.
        charges: ids of its charges: in the exchange store, which others may share, nothing else is of this source.
    """
    return [*private_store().purge(source), *exchange_store().purge(source, charges=charges)]


def write_table(
    table: pa.Table,
    *,
    kind: str,
    label: Label,
    parents: Sequence[ArtifactRef | str] = (),
    match: bytes | None = None,
) -> ArtifactRef:
    """Store `table` as Parquet, the same bytes for the same rows: no metadata, no trace of earlier chunks."""
    with store_for(label).write(kind=kind, label=label, parents=parents, match=match) as draft:
        plain = table.combine_chunks().replace_schema_metadata(None)
        pq.write_table(plain, draft.path / TABLE, compression="zstd")
    return draft.ref


def read_table(ref: ArtifactRef) -> pa.Table:
    """Read a table that `write_table` stored.

    Raises:
        InputError: when the artifact holds no table.
    """
    return pq.read_table(_table_of(ref))


def row_count(ref: ArtifactRef) -> int:
    """How many rows a stored table has, null records too.

    Raises:
        InputError: when the artifact holds no table.
    """
    rows: int = pq.read_metadata(_table_of(ref)).num_rows
    return rows


def _table_of(ref: ArtifactRef) -> Path:
    path = path_of(ref) / TABLE
    if not path.exists():
        raise InputError(f"artifact {ref.id}: expected a table, found kind={ref.kind!r} without {TABLE}")
    return path


def write_json(value: Any, *, kind: str, label: Label, parents: Sequence[ArtifactRef | str] = ()) -> ArtifactRef:
    """Store a JSON value, for example metrics, with sorted keys."""
    with store_for(label).write(kind=kind, label=label, parents=parents) as draft:
        (draft.path / VALUE).write_bytes(canonical_json(value))
    return draft.ref


def read_json(ref: ArtifactRef) -> Any:
    """Read a value that `write_json` stored.

    Raises:
        InputError: when the artifact holds no JSON value.
        ArtifactDamaged: when it is not JSON.
    """
    path = path_of(ref) / VALUE
    if not path.exists():
        raise InputError(f"artifact {ref.id}: expected a JSON value, found kind={ref.kind!r} without {VALUE}")
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        raise ArtifactDamaged(f"artifact {ref.id}: {VALUE} is not JSON") from None
