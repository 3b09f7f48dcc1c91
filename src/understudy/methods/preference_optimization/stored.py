"""The artifacts that pass between the zones: candidates with their embeddings, scores, adapters, and counts.

A module of its own, so that edits to generation or training do not change the code that draws noise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from understudy.tensor_files import load_tensors, save_tensors

TABLE = "table.parquet"
EMBEDDINGS_FILE = "embeddings.safetensors"
FACTS_FILE = "value.json"
SCORES_FILE = "scores.safetensors"
ADAPTER_FILE = "adapter.safetensors"
CANDIDATE_SCHEMA = pa.schema([("prompt", pa.string()), ("text", pa.string()), ("label", pa.int32())])


@dataclass(frozen=True)
class Candidates:
    """The candidates of a round.

    Attributes:
        table: columns `prompt`, `text` and `label` (null without labels), prompt after prompt.
        embeddings: (M, d) float32; what clients receive.
    """

    table: pa.Table = field(repr=False)
    embeddings: npt.NDArray[np.float32] = field(repr=False)

    @property
    def labels(self) -> npt.NDArray[np.int64] | None:
        """(M,) label of each candidate; None without labels."""
        found = self.table["label"].to_pylist()
        return None if found[0] is None else np.array(found, dtype=np.int64)


def save_candidates(candidates: Candidates, folder: Path) -> None:
    """Write the candidates of a round into a folder; equal candidates give equal bytes."""
    pq.write_table(candidates.table.combine_chunks(), folder / TABLE, compression="zstd")
    save_tensors(folder / EMBEDDINGS_FILE, {"embeddings": torch.from_numpy(candidates.embeddings)})


def load_candidates(folder: Path) -> Candidates:
    """Read what `save_candidates` wrote."""
    return Candidates(pq.read_table(folder / TABLE), load_tensors(folder / EMBEDDINGS_FILE)["embeddings"].numpy())


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Counts beside an artifact, of its label."""
    (folder / FACTS_FILE).write_text(json.dumps(facts, sort_keys=True) + "\n")


def read_facts(folder: Path) -> dict[str, Any]:
    """Read what `write_facts` wrote."""
    found: dict[str, Any] = json.loads((folder / FACTS_FILE).read_text())
    return found
