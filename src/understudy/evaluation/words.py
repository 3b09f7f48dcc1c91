"""Word tokens and n-grams, shared by the diversity measures and the memorisation audit.

A word is a maximal run of letters, digits, underscores or inner apostrophes; every other visible character is
a token of its own. Words are compared case-folded after Unicode NFKC normalisation, so a copy that only
changes case, spacing or typographic variants still counts as a copy.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

_TOKEN = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


def words(text: str) -> tuple[str, ...]:
    """The word tokens of one text.

    >>> words("It's  GOOD, isn't it?")
    ("it's", 'good', ',', "isn't", 'it', '?')
    """
    return tuple(_TOKEN.findall(unicodedata.normalize("NFKC", text).casefold()))


def ngrams(tokens: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    """All runs of `n` tokens, in order; none when the text is shorter than `n`.

    >>> list(ngrams(("a", "b", "c"), 2))
    [('a', 'b'), ('b', 'c')]

    Raises:
        ValueError: when n < 1.
    """
    if n < 1:
        raise ValueError(f"expected n >= 1, found n={n}")
    return (tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1))
