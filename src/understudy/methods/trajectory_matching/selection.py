"""Which rows carry the pseudo tokens: random, BM25, DSIR or LESS (NACD, sections 4.1 and 4.2).

- `bm25`: Robertson & Zaragoza 2009, by bm25s: the highest score that any target row, as a query, gives to the row.
  A text without a word scores nothing.
- `dsir`: Xie et al. 2023 (arXiv 2302.03169): unigrams and bigrams hashed into buckets, two bags of buckets with add-one
  smoothing, and the rows with the largest Gumbel-perturbed log ratios: importance resampling without replacement.
- `less`: in `less.py`.

Words are those of `evaluation.texts.words`, in which a script without spaces gives a word for each character.

The chosen rows are as private as the rows they were chosen from.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from understudy.errors import RowError
from understudy.evaluation.texts.words import words as words_of
from understudy.methods.trajectory_matching.config import SelectionConfig

Scores = npt.NDArray[np.floating]


def rows_wanted(config: SelectionConfig, available: int) -> int:
    """How many rows are chosen of `available`.

    Raises:
        RowError: more are wanted than there are, which may be private rows.
    """
    wanted = config.rows if config.rows is not None else max(1, round(config.ratio * available))
    if wanted > available:
        raise RowError(
            f"selection.rows={wanted}: expected at most the {available} rows that can be chosen from; lower it, or "
            "--samples, which sets it, or leave both out and give selection.ratio"
        )
    return wanted


def free_rows(config: SelectionConfig, available: int) -> int:
    """How many of `available` rows can be chosen: without a target, some are set aside to be it and are not chosen."""
    if config.strategy == "random" or config.target is not None:
        return available
    return available - min(config.validation, available // 2)


def random_rows(available: int, wanted: int, *, generator: np.random.Generator) -> list[int]:
    """Rows drawn without replacement, in ascending order."""
    return sorted(generator.choice(available, size=wanted, replace=False).tolist())


def highest(scores: Scores, wanted: int) -> list[int]:
    """The rows of the highest scores, in ascending order; of equal scores the lower row."""
    return sorted(np.argsort(-scores, kind="stable")[:wanted].tolist())


def bm25_scores(texts: Sequence[str], target: Sequence[str]) -> Scores:
    """The best BM25 score `(n,)` of each text for any target text as the query."""
    import bm25s

    best = np.zeros(len(texts))
    corpus = [list(words_of(text)) for text in texts]
    if not any(corpus):
        return best
    index = bm25s.BM25()
    index.index(corpus, show_progress=False)
    known = set(index.vocab_dict)
    for query in target:
        words = [word for word in dict.fromkeys(words_of(query)) if word in known]
        if words:
            best = np.maximum(best, index.get_scores(words))
    return best


def dsir_scores(texts: Sequence[str], target: Sequence[str], *, buckets: int, generator: np.random.Generator) -> Scores:
    """Log importance weights `(n,)` with Gumbel noise: the largest are a sample in proportion to the weights."""
    counts = [_hashed(text, buckets) for text in texts]
    of_target = sum((_hashed(text, buckets) for text in target), np.zeros(buckets))
    of_all = sum(counts, np.zeros(buckets))
    ratio = np.log((of_target + 1) / (of_target.sum() + buckets)) - np.log((of_all + 1) / (of_all.sum() + buckets))
    return np.array([float(one @ ratio) for one in counts]) + generator.gumbel(size=len(texts))


def _hashed(text: str, buckets: int) -> npt.NDArray[np.float64]:
    """Counts `(buckets,)` of hashed unigrams and bigrams; the hash is the same on every machine."""
    words = words_of(text)
    grams = [*words, *(" ".join(pair) for pair in pairwise(words))]
    places = [zlib.crc32(gram.encode()) % buckets for gram in grams]
    return np.bincount(places, minlength=buckets).astype(float) if places else np.zeros(buckets)
