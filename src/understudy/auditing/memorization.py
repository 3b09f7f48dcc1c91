"""What of the private rows stands in the synthetic text word for word.

Paper: "Differentially Private Conditional Text Generation for Synthetic Data", section 6.1, Figures 3 and 4 (n-gram
overlap for n = 3..7). Beside the paper: the same figure against a holdout of the same size that the generator never
saw, without which an overlap cannot be read, since common phrases occur in any two sets; longest verbatim match; exact
duplicates. Tokens are the words of `understudy.evaluation.words`.

*A diagnostic, not a privacy proof.* Equal overlap with members and holdout does not show that nothing leaked:
a rare secret, a paraphrase or a fact in other words leaves no trace here. Only the accounted guarantee says
what holds. The figures are computed on private rows and are internal; they never filter or choose anything
that is exported. Row indices are returned, texts never.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from understudy.evaluation.words import ngrams, words

NGRAM_LENGTHS = (3, 4, 5, 6, 7)

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class VerbatimMatch:
    """The longest run of words that two sets share.

    Attributes:
        words: its length; 0 when they share no word.
        row: row of the first set that contains it, -1 when none.
        reference_row: row of the reference that contains it, -1 when none.
    """

    words: int
    row: int
    reference_row: int


@dataclass(frozen=True)
class Beside:
    """One figure against private rows and against as many holdout rows.

    Attributes:
        private: against private rows, as many as there are holdout rows.
        holdout: against holdout rows.
    """

    private: float
    holdout: float


def ngram_overlap(synthetic: Sequence[str], reference: Sequence[str], n: int) -> float:
    """Share of the distinct word n-grams of `synthetic` that occur in `reference`; 0 when there are none.

    It grows with the size of the reference: compare references of one size only.

    >>> ngram_overlap(["the film was good"], ["A film was good."], 3)  # "film was good" of two
    0.5
    """
    made = {gram for text in synthetic for gram in ngrams(words(text), n)}
    if not made:
        return 0.0
    known = {gram for text in reference for gram in ngrams(words(text), n)}
    return len(made & known) / len(made)


def duplicate_share(synthetic: Sequence[str], reference: Sequence[str]) -> float:
    """Share of synthetic rows whose words are exactly those of a reference row; 0 for an empty set."""
    known = {words(text) for text in reference}
    return sum(words(text) in known for text in synthetic) / len(synthetic) if synthetic else 0.0


def same_size(private: Sequence[str], holdout: Sequence[str], *, seed: int) -> tuple[list[str], list[str]]:
    """Random subsets of equal size, the smaller set whole, so that overlaps with both can be compared."""
    size = min(len(private), len(holdout))
    generator = np.random.default_rng(seed)
    drawn = []
    for texts in (private, holdout):
        rows = np.sort(generator.permutation(len(texts))[:size]) if len(texts) > size else range(size)
        drawn.append([texts[row] for row in rows])
    return drawn[0], drawn[1]


def ngram_overlap_beside(
    synthetic: Sequence[str], private: Sequence[str], holdout: Sequence[str], *, seed: int
) -> dict[int, Beside]:
    """Overlap of synthetic n-grams with private rows and with as many holdout rows, for n = 3..7.

    Args:
        synthetic: texts to audit.
        private: the rows they were made from.
        holdout: real rows of the same origin that the generator never saw.
        seed: of the subsampling to equal size; public.
    """
    members, others = same_size(private, holdout, seed=seed)
    return {n: Beside(ngram_overlap(synthetic, members, n), ngram_overlap(synthetic, others, n)) for n in NGRAM_LENGTHS}


def longest_verbatim_match(texts: Sequence[str], reference: Sequence[str]) -> VerbatimMatch:
    """The longest run of words inside one text and inside one reference row.

    Exact, without hashing: runs of length 2^k are named by integers (Karp, Miller & Rosenberg 1972), a run of
    any length L is two overlapping runs of length 2^floor(log2 L), and the greatest L with a common run is
    found by bisection, since every common run contains a common run one shorter. O(N log N) work for each of
    O(log L) lengths, N the words of both sets.

    Args:
        texts: (n,) synthetic texts.
        reference: (m,) private or holdout texts.
    """
    tokens, left, row, is_reference = _concatenate(texts, reference)
    if tokens.size == 0:
        return VerbatimMatch(0, -1, -1)
    names = _name_runs(tokens, left)
    best = VerbatimMatch(0, -1, -1)
    low, high = 0, int(left.max())
    while low < high:  # a common run of `low` words exists, none of `high` + 1
        length = (low + high + 1) // 2
        found = _common_run(names, left, is_reference, length)
        if found is None:
            high = length - 1
        else:
            low = length
            best = VerbatimMatch(length, int(row[found[0]]), int(row[found[1]]))
    return best


def _concatenate(texts: Sequence[str], reference: Sequence[str]) -> tuple[Ints, Ints, Ints, npt.NDArray[np.bool_]]:
    """Per word of both sets: id, words left in its row (with itself), row, whether of the reference."""
    vocabulary: dict[str, int] = {}
    tokens: list[int] = []
    left: list[int] = []
    rows: list[int] = []
    boundary = 0
    for side in (texts, reference):
        boundary = len(tokens)
        for index, text in enumerate(side):
            found = words(text)
            tokens.extend(vocabulary.setdefault(word, len(vocabulary)) for word in found)
            left.extend(range(len(found), 0, -1))
            rows.extend([index] * len(found))
    is_reference = np.arange(len(tokens)) >= boundary
    return np.array(tokens, np.int64), np.array(left, np.int64), np.array(rows, np.int64), is_reference


def _name_runs(tokens: Ints, left: Ints) -> list[Ints]:
    """Names of all runs of 2^k words: result[k][i] == result[k][j] iff the runs at i and j are equal.

    A run that would leave its row has the name -1.
    """
    names = [tokens]
    length = 2
    while length <= left.max():
        half = names[-1]
        starts = np.flatnonzero(left >= length)
        _, ranks = np.unique(half[starts] * len(tokens) + half[starts + length // 2], return_inverse=True)
        named = np.full(len(tokens), -1, np.int64)
        named[starts] = ranks
        names.append(named)
        length *= 2
    return names


def _common_run(
    names: list[Ints], left: Ints, is_reference: npt.NDArray[np.bool_], length: int
) -> tuple[int, int] | None:
    """Positions (in the texts, in the reference) of a common run of exactly `length` words, or None."""
    level = length.bit_length() - 1
    fits = left >= length
    starts, reference_starts = np.flatnonzero(fits & ~is_reference), np.flatnonzero(fits & is_reference)
    runs, reference_runs = (
        names[level][s] * len(left) + names[level][s + length - 2**level] for s in (starts, reference_starts)
    )
    _, first, second = np.intersect1d(runs, reference_runs, return_indices=True)
    return (int(starts[first[0]]), int(reference_starts[second[0]])) if first.size else None
