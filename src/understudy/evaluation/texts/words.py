"""Word tokens and n-grams, shared by the diversity measures and the memorisation audit.

A word is a maximal run of letters, digits, underscores or inner apostrophes; every other visible character is
a token of its own, and so is each character of a script that puts no spaces between words. Words are compared
case-folded after Unicode NFKC normalisation, with one kind of quotation marks and of dashes and without invisible
characters, so a copy that only changes case, spacing or typographic variants still counts as a copy.

Texts that are compared are tokenised once, together: each word becomes a number, and every run of n words a number
made of that of its first n - 1 words and its last word. Equal runs have equal numbers and different ones different
numbers; nothing is hashed down, and the work is linear in the number of words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# Scripts without spaces between words: Thai, Lao, Myanmar, Khmer, kana, and Chinese characters.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_LETTER = rf"(?:(?![{_UNSPACED}])\w)"
_TOKEN = re.compile(rf"{_LETTER}+(?:'{_LETTER}+)*|[{_UNSPACED}]|[^\w\s]")
_VARIANTS = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bc\u0060\u00b4", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"')
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
    # What nobody sees: soft hyphens, spaces and joiners without a width, byte order marks.
    | dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff")
)

Ints = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, eq=False)
class TokenizedTexts:
    """Texts as numbers of their words; made by `tokenize`.

    Attributes:
        ids: (N,) int64 numbers of the words, text after text.
        lengths: (n,) int64 words per text.
        vocabulary: word -> number, the same object for all sets that were tokenised together.
    """

    ids: Ints = field(repr=False)
    lengths: Ints = field(repr=False)
    vocabulary: dict[str, int] = field(repr=False)

    def __len__(self) -> int:
        """Number of texts."""
        return len(self.lengths)

    def take(self, rows: Ints) -> TokenizedTexts:
        """Some of the texts, in the order of `rows`."""
        ends = self.lengths.cumsum()
        lengths = self.lengths[rows]
        inside = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
        ids = self.ids[np.repeat(ends[rows] - lengths, lengths) + inside]
        return TokenizedTexts(ids, lengths, self.vocabulary)

    def texts(self) -> list[bytes]:
        """One value per text; equal values mean equal words."""
        ends = self.lengths.cumsum()
        spans = zip((ends - self.lengths).tolist(), ends.tolist(), strict=True)
        return [self.ids[start:end].tobytes() for start, end in spans]

    def words_left(self) -> Ints:
        """(N,) words from each word to the end of its text, with itself."""
        left: Ints = np.repeat(self.lengths.cumsum(), self.lengths) - np.arange(len(self.ids))
        return left


Texts = Sequence[str] | TokenizedTexts


def words(text: str) -> tuple[str, ...]:
    """The word tokens of one text.

    >>> words("It's  GOOD, isn't it?")
    ("it's", 'good', ',', "isn't", 'it', '?')
    """
    return tuple(_TOKEN.findall(unicodedata.normalize("NFKC", text).casefold().translate(_VARIANTS)))


def tokenize(*sets: Sequence[str]) -> tuple[TokenizedTexts, ...]:
    """Tokenise sets of texts with one vocabulary, so that their words and runs can be compared.

    >>> one, other = tokenize(["a b a"], ["b", "c"])
    >>> one.ids.tolist(), other.ids.tolist(), other.lengths.tolist()
    ([0, 1, 0], [1, 2], [1, 1])
    """
    vocabulary: dict[str, int] = {}
    made = []
    for texts in sets:
        ids: list[int] = []
        lengths = []
        for text in texts:
            found = words(text)
            ids.extend(vocabulary.setdefault(word, len(vocabulary)) for word in found)
            lengths.append(len(found))
        made.append(TokenizedTexts(np.array(ids, np.int64), np.array(lengths, np.int64), vocabulary))
    return tuple(made)


def tokenized(*sets: Texts) -> tuple[TokenizedTexts, ...]:
    """The sets tokenised together: as they are where they have been, tokenised now where they are strings.

    Raises:
        ValueError: when some are strings and some are not, or the vocabularies differ.
    """
    done = [texts for texts in sets if isinstance(texts, TokenizedTexts)]
    if not done:
        return tokenize(*(texts for texts in sets if not isinstance(texts, TokenizedTexts)))
    if len(done) < len(sets) or any(texts.vocabulary is not done[0].vocabulary for texts in done):
        raise ValueError(f"expected {len(sets)} sets of texts tokenised by one call of `tokenize`, found others")
    return tuple(done)


def join(*sets: TokenizedTexts) -> TokenizedTexts:
    """One set after the other.

    Raises:
        ValueError: when they were not tokenised together.
    """
    first, *_ = tokenized(*sets)
    parts = [np.concatenate(part) for part in zip(*((texts.ids, texts.lengths) for texts in sets), strict=True)]
    return TokenizedTexts(parts[0], parts[1], first.vocabulary)


def number_ngrams(texts: TokenizedTexts, longest: int) -> Iterator[Ints]:
    """For n = 1, 2, ..., `longest`: the number of the run of n words that begins at each word.

    Args:
        texts: tokenised texts.
        longest: greatest n.

    Yields:
        (N,) int64; -1 where the text ends before the run does. The numbers of one n are 0, 1, 2, ... without a gap.

    Raises:
        ValueError: when `longest` < 1.
    """
    if longest < 1:
        raise ValueError(f"expected runs of at least one word, found longest={longest}")
    left, width = texts.words_left(), len(texts.vocabulary)
    runs = number_distinct(texts.ids)
    yield runs
    for n in range(2, longest + 1):
        starts = np.flatnonzero(left >= n)
        longer = np.full(len(runs), -1, np.int64)
        longer[starts] = number_distinct(runs[starts] * width + texts.ids[starts + n - 1])
        runs = longer
        yield runs


def number_distinct(values: Ints) -> Ints:
    """0, 1, 2, ... for distinct values in the order in which they appear; linear in their number."""
    encoded: Ints = pa.array(values, pa.int64()).dictionary_encode().indices.to_numpy().astype(np.int64)
    return encoded
