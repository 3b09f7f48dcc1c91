"""How varied a set of texts is: distinct n-grams, lengths, duplicates.

distinct-n after Li et al. 2016 (A diversity-promoting objective function), section 5.2: distinct n-grams
divided by all n-grams. It falls as a set grows, so two sets are compared at the same number of texts
(`measure.measure_diversity` does so). Tokens are the words of `understudy.evaluation.texts.words`. Every function takes
strings, or what `words.tokenize` made of them, so that several figures tokenise once.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from understudy.evaluation.texts.words import Texts, number_ngrams, tokenized
from understudy.frozen import Frozen

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class LengthHistogram(Frozen):
    """Shares of texts per length bin; bin i holds lengths in [edges[i], edges[i + 1]).

    Texts as long as the last edge or longer are counted in the last bin.
    """

    edges: tuple[float, ...]
    shares: dict[str, tuple[float, ...]]


def distinct_n(texts: Texts, n: int) -> float:
    """Distinct n-grams divided by all n-grams; 0 when no text is long enough.

    >>> distinct_n(["a b a b"], 2)  # ab, ba, ab
    0.6666666666666666
    """
    return distinct_shares(texts, n)[n]


def distinct_shares(texts: Texts, longest: int) -> dict[int, float]:
    """`distinct_n` for n = 1, 2, ..., `longest`, of one pass over the texts."""
    (read,) = tokenized(texts)
    shares = {}
    for n, runs in enumerate(number_ngrams(read, longest), 1):
        count = int((runs >= 0).sum())
        shares[n] = float(runs.max() + 1) / count if count else 0.0
    return shares


def duplicate_share(texts: Texts) -> float:
    """Share of texts whose words equal those of an earlier text; 0 for an empty set.

    >>> duplicate_share(["so good", "So  good", "so bad", "SO GOOD"])
    0.5
    """
    (read,) = tokenized(texts)
    return 1 - len(set(read.texts())) / len(read) if read else 0.0


def lengths(texts: Texts) -> list[int]:
    """Words per text."""
    (read,) = tokenized(texts)
    counts: list[int] = read.lengths.tolist()
    return counts


def length_quantiles(texts: Texts) -> dict[float, float]:
    """Quantiles (5, 25, 50, 75, 95 %) of the words per text, linearly interpolated.

    Raises:
        ValueError: when there is no text.
    """
    if not texts:
        raise ValueError("expected at least one text, found none")
    counts = lengths(texts)
    return {q: float(np.quantile(counts, q)) for q in QUANTILES}


def length_histogram(texts: Mapping[str, Texts], *, bins: int = 20) -> LengthHistogram:
    """Length distributions of several sets over common bins.

    The bins have a whole number of words as width and reach up to the 99 % quantile of all texts, so that a
    single endless text does not flatten the picture.

    Args:
        texts: name of the set -> its texts; empty sets are left out.
        bins: greatest number of bins.

    Raises:
        ValueError: when every set is empty.
    """
    counts = {name: np.asarray(lengths(rows)) for name, rows in texts.items() if rows}
    if not counts:
        raise ValueError("expected at least one text, found none")
    top = max(1.0, float(np.quantile(np.concatenate(list(counts.values())), 0.99)))
    width = int(np.ceil((top + 1) / bins))
    edges = np.arange(0, width * (int(np.ceil((top + 1) / width)) + 1), width)
    shares = {
        name: tuple(float(s) for s in np.histogram(np.minimum(count, edges[-1]), bins=edges)[0] / len(count))
        for name, count in counts.items()
    }
    return LengthHistogram(edges=tuple(float(e) for e in edges), shares=shares)
