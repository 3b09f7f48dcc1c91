"""What is left of the released class means for whoever knows all rows but the canaries of an audit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from understudy.auditing.known_rows import LeftOver, seen_from
from understudy.data.private_rows import private_rows
from understudy.evaluation.texts import encoder
from understudy.evaluation.texts.encoder import Encoder, each_alone
from understudy.methods.conditional_generation.class_means import check_encoder
from understudy.methods.conditional_generation.storage import released_means
from understudy.methods.reading import SumsToRead

Numbers = npt.NDArray[np.float64]


def left_over(asked: SumsToRead) -> LeftOver | None:
    """Of the sums of the rows' embeddings; None where texts are not selected by class means.

    The means were released and the numbers of rows were not. Those are known up to the canaries, so the sums are known
    but for their length: what points along a mean is left out, of the sums and of the canaries.

    Raises:
        InputError: the folder holds no model of this method, or the sentence encoder is another one.
    """
    means = released_means(asked.released.folder)
    if means is None:
        return None
    sentences = encoder.load_encoder(device=asked.compute.device)
    check_encoder(means, sentences)
    shape = (len(asked.label_names), sentences.dimension)
    others, rows = np.zeros(shape), np.zeros(len(asked.label_names))
    for _, label, vector in _added(asked.others, asked.label_names, sentences):
        others[label] += vector
        rows[label] += 1
    canaries = np.zeros((asked.canaries.num_rows, *shape))
    for slot, label, vector in _added(asked.canaries, asked.label_names, sentences):
        canaries[slot, label] = vector
        rows[label] += 1 / 2
    vectors = means.vectors.astype(np.float64)
    left = vectors * rows[:, None] - others - canaries.sum(0) / 2
    along = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    left, canaries = (one - (one * along).sum(-1, keepdims=True) * along for one in (left, canaries))
    return seen_from(
        torch.from_numpy(canaries).flatten(1),
        torch.from_numpy(left).flatten(),
        deviation=float((means.noise * rows).mean()),
    )


def _added(table: pa.Table, label_names: tuple[str, ...], sentences: Encoder) -> Iterator[tuple[int, int, Numbers]]:
    """Slot, label and embedding with norm 1 of each row: what it adds to the sum of its label."""
    private = private_rows(table, label_names)
    slots = [slot for slot, is_valid in enumerate(private.valid) if is_valid]
    texts = [text for text in private.valid_texts if text is not None]
    labels = private.label_indices
    for slot, vector in zip(slots, each_alone(texts, sentences), strict=True):
        norm = np.linalg.norm(vector.astype(np.float64))
        if 0 < norm < np.inf:
            yield slot, labels[slot], vector / norm
