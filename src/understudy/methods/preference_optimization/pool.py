"""The clients' embeddings, computed once and scored from in every round; private, and stored in the client zone only.

Candidates change from round to round, clients' texts do not: one pass of the encoder serves all rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from understudy.methods.preference_optimization.clients import (
    ByteArray,
    Embeddings,
    FloatArray,
    IntArray,
    build_clients,
    build_texts,
    client_means,
    embed_samples,
    unit_ids,
)
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.progress import UNKEPT, Course
from understudy.tensor_files import load_tensors, save_tensors

POOL_FILE = "clients.safetensors"


@dataclass(frozen=True)
class ClientPool:
    """What scoring needs of the private texts.

    Attributes:
        means: (n, C * d) float64 mean embedding of each slot, per label; a null slot is zero.
        embeddings: (N, d) float32 of the samples, slot after slot.
        owner: (N,) int64 slots.
        labels: (N,) int64 label of each sample; None without labels.
        unit_ids: (n, 16) uint8 keyed hash of each slot's client, by which it takes part wherever it stands; zeros in a
            null slot. None: a unit takes part by its slot.
    """

    means: FloatArray = field(repr=False)
    embeddings: Embeddings = field(repr=False)
    owner: IntArray = field(repr=False)
    labels: IntArray | None = field(repr=False)
    unit_ids: ByteArray | None = field(default=None, repr=False)

    @property
    def slots(self) -> int:
        """n, public."""
        return len(self.means)


def build_pool(
    table: pa.Table,
    *,
    config: PreferenceOptimizationConfig,
    classes: int,
    tokenizer: Any,
    encode: Callable[[Sequence[str]], Embeddings],
    dimension: int,
    slots: int | None = None,
    course: Course = UNKEPT,
) -> ClientPool:
    """Cut, embed and average the private texts.

    Args:
        table: checked rows of the variant's kind: `client_id` and `text`, `text`, or `text` and `label`. A null or
            blank text of a central variant is the null unit.
        config: variant and tokens of a sample.
        classes: number of labels, 0 without.
        tokenizer: of the base model; its tokens are counted.
        encode: sentence encoder, such as `Encoder.encode`.
        dimension: of an embedding.
        slots: declared number of clients, public; None: as many as the table has. Texts have one slot per row.
        course: of the embedding, as for `embed_samples`.
    """
    ids = None
    if config.variant == "federated":
        clients = build_clients(table, tokenizer, config.clients.sample_tokens, slots=slots)
        ids = unit_ids(table, slots=clients.slots)
    else:
        texts = table["text"].to_pylist()
        clients = build_texts([text if text and text.strip() else None for text in texts])
    embeddings = embed_samples(clients, encode, dimension=dimension, course=course)
    labels = None
    if config.variant == "central_conditional":
        labels = np.array([label or 0 for label in table["label"].to_pylist()], dtype=np.int64)[clients.owner]
    means = client_means(embeddings, clients.owner, slots=clients.slots, labels=labels, classes=max(classes, 1))
    return ClientPool(means=means, embeddings=embeddings, owner=clients.owner, labels=labels, unit_ids=ids)


def save_pool(pool: ClientPool, folder: Path) -> None:
    """Write the pool into a private folder."""
    arrays: dict[str, npt.NDArray[Any]] = {"means": pool.means, "embeddings": pool.embeddings, "owner": pool.owner}
    if pool.labels is not None:
        arrays["labels"] = pool.labels
    if pool.unit_ids is not None:
        arrays["unit_ids"] = pool.unit_ids
    save_tensors(folder / POOL_FILE, {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()})


def load_pool(folder: Path) -> ClientPool:
    """Read what `save_pool` wrote.

    Raises:
        ArtifactDamaged: the file is missing or not whole.
    """
    found = {name: tensor.numpy() for name, tensor in load_tensors(folder / POOL_FILE).items()}
    return ClientPool(found["means"], found["embeddings"], found["owner"], found.get("labels"), found.get("unit_ids"))
