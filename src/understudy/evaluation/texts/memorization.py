"""What of the private rows stands in the synthetic text word for word.

Paper: "Differentially Private Conditional Text Generation for Synthetic Data", section 6.1, Figures 3 and 4 (n-gram
overlap for n = 3..7). Beside the paper: the same figure against a holdout of the same size that the generator never
saw, without which an overlap cannot be read, since common phrases occur in any two sets; longest verbatim match; exact
duplicates. Tokens are the words of `understudy.evaluation.texts.words`. Functions take strings, or what one
call of `words.tokenize` made of all sets that are compared.

*A diagnostic, not a privacy proof.* Equal overlap with members and holdout does not show that nothing leaked:
a rare secret, a paraphrase or a fact in other words leaves no trace here. Only the accounted guarantee says
what holds. The figures are computed on private rows and are internal; they never filter or choose anything
that is exported. Row indices are returned, texts never.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from understudy.evaluation.texts.words import Texts, TokenizedTexts, join, number_distinct, number_ngrams, tokenized

NGRAM_LENGTHS = (3, 4, 5, 6, 7)

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Side = TypeVar("Side", Sequence[str], TokenizedTexts)


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


def duplicate_share(synthetic: Texts, reference: Texts) -> float:
    """Share of synthetic rows whose words are exactly those of a reference row; 0 for an empty set."""
    made, read = tokenized(synthetic, reference)
    known = set(read.texts())
    return sum(text in known for text in made.texts()) / len(made) if made else 0.0


def same_size(private: Side, holdout: Side, *, seed: int) -> tuple[Side, Side]:
    """Random subsets of equal size, the smaller set whole, so that overlaps with both can be compared."""
    size = min(len(private), len(holdout))
    generator = np.random.default_rng(seed)
    first, second = (_drawn(texts, size, generator) for texts in (private, holdout))
    return first, second


def ngram_overlap_beside(synthetic: Texts, private: Texts, holdout: Texts, *, seed: int) -> dict[int, Beside]:
    """Overlap of synthetic n-grams with private rows and with as many holdout rows, for n = 3..7.

    Args:
        synthetic: texts to audit.
        private: the rows they were made from.
        holdout: real rows of the same origin that the generator never saw.
        seed: of the subsampling to equal size; public.
    """
    made, *read = tokenized(synthetic, private, holdout)
    overlaps = _overlaps(made, *same_size(read[0], read[1], seed=seed), lengths=NGRAM_LENGTHS)
    return {n: Beside(*shares) for n, shares in overlaps.items()}


def longest_verbatim_match(texts: Texts, reference: Texts) -> VerbatimMatch:
    """The longest run of words inside one text and inside one reference row.

    Exact, without hashing: runs of length 2^k are named by integers (Karp, Miller & Rosenberg 1972), a run of
    any length L is two overlapping runs of length 2^floor(log2 L), and the greatest L with a common run is
    found by bisection, since every common run contains a common run one shorter. O(N log N) work for each of
    O(log L) lengths, N the words of both sets.

    Args:
        texts: (n,) synthetic texts.
        reference: (m,) private or holdout texts.
    """
    tokens, left, row, is_reference = _concatenate(*tokenized(texts, reference))
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


def _drawn(texts: Side, size: int, generator: np.random.Generator) -> Side:
    """`size` random texts in their order; all of them without a draw where there are no more."""
    if len(texts) == size:
        return texts
    rows = np.sort(generator.permutation(len(texts))[:size])
    if isinstance(texts, TokenizedTexts):
        return texts.take(rows)
    return [texts[row] for row in rows]


def _overlaps(
    synthetic: TokenizedTexts, *references: TokenizedTexts, lengths: Sequence[int]
) -> dict[int, tuple[float, ...]]:
    """For each n: the share of the distinct synthetic n-grams that occur in each reference; 0 when there are none."""
    sets = (synthetic, *references)
    origin = np.repeat(np.arange(len(sets)), [len(texts.ids) for texts in sets])
    overlaps = {}
    for n, runs in enumerate(number_ngrams(join(*sets), max(lengths)), 1):
        if n in lengths:
            made, *known = (_present(runs[origin == i]) for i in range(len(sets)))
            count = max(1, len(made))
            overlaps[n] = tuple(len(np.intersect1d(made, each, assume_unique=True)) / count for each in known)
    return overlaps


def _present(runs: Ints) -> Ints:
    """The distinct numbers of whole runs, ascending."""
    counts: Ints = np.flatnonzero(np.bincount(runs[runs >= 0]))
    return counts


def _concatenate(texts: TokenizedTexts, reference: TokenizedTexts) -> tuple[Ints, Ints, Ints, Bools]:
    """Per word of both sets: id, words left in its row (with itself), row, whether of the reference."""
    both = join(texts, reference)
    tokens = next(number_ngrams(both, 1))  # fewer numbers than words, whatever else the vocabulary holds
    rows = np.concatenate([np.repeat(np.arange(len(side)), side.lengths) for side in (texts, reference)])
    return tokens, both.words_left(), rows, np.arange(len(tokens)) >= len(texts.ids)


def _name_runs(tokens: Ints, left: Ints) -> list[Ints]:
    """Names of all runs of 2^k words: result[k][i] == result[k][j] iff the runs at i and j are equal.

    A run that would leave its row has the name -1.
    """
    names = [tokens]
    length = 2
    while length <= left.max():
        half = names[-1]
        starts = np.flatnonzero(left >= length)
        named = np.full(len(tokens), -1, np.int64)
        named[starts] = number_distinct(half[starts] * len(tokens) + half[starts + length // 2])
        names.append(named)
        length *= 2
    return names


def _common_run(names: list[Ints], left: Ints, is_reference: Bools, length: int) -> tuple[int, int] | None:
    """Positions (in the texts, in the reference) of a common run of exactly `length` words, or None."""
    level = length.bit_length() - 1
    fits = left >= length
    starts, reference_starts = np.flatnonzero(fits & ~is_reference), np.flatnonzero(fits & is_reference)
    runs, reference_runs = (
        names[level][s] * len(left) + names[level][s + length - 2**level] for s in (starts, reference_starts)
    )
    _, first, second = np.intersect1d(runs, reference_runs, return_indices=True)
    return (int(starts[first[0]]), int(reference_starts[second[0]])) if first.size else None
