"""Which public topic a row is about, how many rows each has, and what share of the synthetic rows that gives it.

CTCL (Tan et al. 2025, arXiv 2503.12347): a noised histogram over public topics says how many texts of each
are written. A row's topic is the one whose words have the nearest embedding (cosine) in the space of the public
sentence encoder: a function of this row alone. Deviation: the paper takes the nearest centroid of a cluster. Words
stand in the plan and are all that a topic is, so that whoever reads them knows what was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from understudy.evaluation.texts import encoder
from understudy.evaluation.texts.encoder import Encoder, each_alone
from understudy.methods.conditional_generation.class_sizes import share_out


def topics_of_rows(
    texts: Sequence[str | None],
    topics: Sequence[Sequence[str]],
    *,
    device: str = "cpu",
    embedded: dict[str, npt.NDArray[np.float32]] | None = None,
) -> Tensor:
    """The topic of each row; each is embedded alone, so that no row has a part in another's.

    Args:
        texts: private or public; None for the null row.
        topics: the words of each topic, public; empty without topics.
        device: that the sentence encoder runs on.
        embedded: gets the embedding of each text, which the class means need too; private where the texts are.

    Returns:
        `(len(texts),)` int64; 0 for null rows and without topics. Private where the texts are.
    """
    found = torch.zeros(len(texts), dtype=torch.long, device="cpu")
    if not topics:
        return found
    sentences = _loaded(encoder.load_encoder, device)
    anchors = np.stack([_unit(vector) for vector in each_alone([", ".join(words) for words in topics], sentences)])
    rows = [row for row, text in enumerate(texts) if text is not None]
    with closing(each_alone([text for text in texts if text is not None], sentences)) as vectors:
        for row, vector in zip(rows, vectors, strict=True):
            # Element by element: what a matrix product rounds may hang on its other rows.
            found[row] = int((anchors * vector.astype(np.float64)).sum(1).argmax())
            if embedded is not None:
                embedded[texts[row] or ""] = vector
    return found


@lru_cache(maxsize=2)
def _loaded(load: Callable[..., Encoder], device: str) -> Encoder:
    return load(device=device)


def _unit(vector: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    wide = vector.astype(np.float64)
    return wide / max(float(np.linalg.norm(wide)), 1e-12)


def topic_sizes(
    sizes: Mapping[str, int], label_names: Sequence[str], counts: Sequence[int] | None, *, topics: int
) -> list[int]:
    """Rows wanted of each label and topic, label by label. Post-processing.

    Args:
        sizes: label name -> rows wanted.
        label_names: every label.
        counts: the noised histogram `(labels * topics,)`, in which negative counts are 0; None for equal shares.
        topics: how many there are; 1 without topics.

    >>> topic_sizes({"a": 4, "b": 3}, ["a", "b"], [3, 1, -2, 0], topics=2)
    [3, 1, 2, 1]
    """
    wanted: list[int] = []
    for label, name in enumerate(label_names):
        own = [0] * topics if counts is None else counts[label * topics : (label + 1) * topics]
        weights = [float(max(count, 0)) for count in own]
        weights = weights if sum(weights) > 0 else [1.0] * topics
        wanted += share_out(weights, [str(topic) for topic in range(topics)], total=int(sizes.get(name, 0))).values()
    return wanted
