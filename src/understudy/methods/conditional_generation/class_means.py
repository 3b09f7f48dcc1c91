"""Noised class means in the space of a public sentence encoder, and the texts that stand nearest to their own.

Ours, not the paper's. A head that learns labels from noised gradients of a small language model learns little, and the
texts it steers teach little. The mean embedding of each class is one Gaussian query of few numbers, and by it the
texts that carry their label can be told from those that do not: the classifier of nearest class means (Mensink et al.
2013, Distance-based image classification, section 3). It is used on synthetic texts alone.

One row adds its embedding, scaled to norm 1, to its class's sum, and `_COUNT` to its class's count; the two are scaled
so that their norm is at most 1, which is the sensitivity. A row's embedding is computed alone: what else is in a batch
may move its last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from understudy.data.private_rows import PrivateRows
from understudy.methods.conditional_generation.queries import CLASS_MEANS, Asked
from understudy.privacy.grid import charged_sensitivity
from understudy.privacy.grid_sum import GridSum

Vectors = npt.NDArray[np.float32]
Encode = Callable[[Sequence[str]], Vectors]

# What a row adds to its class's count, where its embedding has norm 1: most of the noise budget is for the embedding.
_COUNT = 0.5
_SCALE = (1 + _COUNT**2) ** -0.5
_ROWS_IN_FLOATS = 1 << 15


@dataclass(frozen=True)
class ClassMeans:
    """Where the classes lie; released if the charge has noise, else private.

    Attributes:
        vectors: `(labels, d)` float32, of norm at most 1.
        noise: `(labels,)` float32, standard deviation of each coordinate's noise.
    """

    vectors: Vectors
    noise: Vectors


def release_class_means(private: PrivateRows, asked: Asked, encode: Encode, *, dimension: int) -> ClassMeans:
    """Sum the embeddings of the private rows per label, release sums and counts once, and divide.

    *Guarantee*: one Gaussian query of sensitivity 1 (unit example, relation replace_special), part of the charge.

    Args:
        private: rows of the source.
        asked: what was charged, class means included.
        encode: public sentence encoder, texts -> (texts, d).
        dimension: d.
    """
    labels, noise = len(private.label_names), asked.schedule.means_noise
    assert noise is not None
    total = GridSum(sensitivity=1.0)
    for start in range(0, len(private), _ROWS_IN_FLOATS):
        stop = min(start + _ROWS_IN_FLOATS, len(private))
        sums, counts = np.zeros((labels, dimension)), np.zeros(labels)
        for text, label in zip(private.valid_texts[start:stop], private.label_indices[start:stop], strict=True):
            if text is not None:
                sums[label] += _SCALE * _unit(encode([text])[0])
                counts[label] += _SCALE * _COUNT
        total.add({"counts": torch.from_numpy(counts), "sums": torch.from_numpy(sums)}, units=stop - start)
    released = asked.mechanisms.gaussian_sum(
        total.steps(), sensitivity=1.0, noise_multiplier=noise, step=0, purpose=CLASS_MEANS, once=True
    )
    rows = np.maximum(released["counts"].double().numpy() / (_SCALE * _COUNT), 1.0)
    means = released["sums"].double().numpy() / (_SCALE * rows[:, None])
    deviation = noise * charged_sensitivity(1.0) / (_SCALE * rows)
    # A mean of unit vectors is no longer than 1; of a class with few rows noise makes it longer.
    long = np.maximum(np.linalg.norm(means, axis=1), 1.0)
    return ClassMeans((means / long[:, None]).astype(np.float32), (deviation / long).astype(np.float32))


def _unit(vector: Vectors) -> npt.NDArray[np.float64]:
    """The vector with norm 1; zero where it has no direction."""
    wide = vector.astype(np.float64)
    norm = np.linalg.norm(wide)
    return wide / norm if 0 < norm < np.inf else np.zeros_like(wide)


def margins(means: ClassMeans, embedded: Vectors, labels: Sequence[int]) -> npt.NDArray[np.float64]:
    """How much nearer each text is to its own label's mean than to the nearest other one; 0 with one label.

    Half the difference of squared distances, of which the noise's own expected length is taken off.

    Args:
        means: of all labels.
        embedded: `(n, d)` embeddings of synthetic texts.
        labels: label index of each.
    """
    vectors, dimension = means.vectors.astype(np.float64), means.vectors.shape[1]
    length = np.maximum((vectors**2).sum(1) - dimension * means.noise.astype(np.float64) ** 2, 0.0)
    scores = embedded.astype(np.float64) @ vectors.T - 0.5 * length
    rows = np.arange(len(labels))
    own = scores[rows, labels]
    scores[rows, labels] = -np.inf
    found: npt.NDArray[np.float64] = own - scores.max(1) if scores.shape[1] > 1 else np.zeros(len(labels))
    return found


def nearest(texts: Sequence[str], margin: Sequence[float], *, most: int) -> list[int]:
    """Which of one label's texts are kept, in the order they were drawn.

    The largest margins, an equal text's repetitions behind all others; earlier draws win ties.
    """
    first = {text: place for place, text in reversed(list(enumerate(texts)))}
    order = sorted(range(len(texts)), key=lambda place: (first[texts[place]] < place, -margin[place]))
    return sorted(order[:most])
