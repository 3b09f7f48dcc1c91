"""Strings that point at one person or thing by their form: addresses, names of accounts, long numbers, codes.

The form alone decides, without a list and without a model, so a person's name is not found here; the words that stand
in one row alone (`single_rows`) hold names. Values are compared without case, separators and typographic variants, so a
telephone number that is written otherwise is the same. Two numbers with nothing but a space between them are one, as
the groups of a telephone number are.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from understudy.evaluation.texts.words import TokenizedTexts

# The digits of a date, an account, a telephone or card number; shorter numbers point at nobody.
FEWEST_DIGITS: Final = 6
_FEWEST_OF_A_CODE: Final = 5

_EMAIL = re.compile(r"[\w.+%-]+@[\w-]+(?:\.[\w-]+)+")
_ACCOUNT = re.compile(r"(?<!\w)@\w{3,}")  # @someone, as social media write it
_WEB = re.compile(r"(?:https?://|www\.)[^\s<>\"']+", re.IGNORECASE)
# Groups of an account number (IBAN), and words of capitals and digits, perhaps with a separator between them.
_CODE = re.compile(
    r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b|\b[A-Za-z0-9]+(?:[-/_][A-Za-z0-9]+)*\b"
)
# At most a bracket and a space, or a separator and a space, between two digits.
_NUMBER = re.compile(r"(?<!\w)\d(?:[ ().\-/]{0,2}\d)*(?!\w)")
_DASHES = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"))


def _caseless(found: str) -> str:
    return found.casefold()


def _web(found: str) -> str:
    return re.sub(r"^(?:https?://)?(?:www\.)?", "", found.rstrip(".,;:!?)]}").casefold()).rstrip("/")


def _code(found: str) -> str:
    """Capitals and at least two digits; empty for every other word."""
    plain = re.sub(r"[^A-Za-z0-9]", "", found)
    capital, digits = any(sign.isupper() for sign in plain), sum(sign.isdigit() for sign in plain)
    return plain.casefold() if capital and digits >= 2 and len(plain) >= _FEWEST_OF_A_CODE else ""


def _number(found: str) -> str:
    digits = re.sub(r"\D", "", found)
    return digits if len(digits) >= FEWEST_DIGITS else ""


# Kind, in the order in which they are looked for: what one has taken, no later one sees.
_KINDS: Final[tuple[tuple[str, re.Pattern[str], Callable[[str], str]], ...]] = (
    ("email", _EMAIL, _caseless),
    ("web", _WEB, _web),
    ("account", _ACCOUNT, _caseless),
    ("code", _CODE, _code),
    ("number", _NUMBER, _number),
)
KINDS: Final = tuple(kind for kind, _, _ in _KINDS)


def identifiers(text: str) -> tuple[tuple[str, str], ...]:
    """Kind and value of the identifiers of one text, each once.

    >>> identifiers("Call (533) 555-0125 or 533.555.0125, order BK-4821, a.nobody@Example.org")
    (('email', 'a.nobody@example.org'), ('code', 'bk4821'), ('number', '5335550125'))
    """
    return tuple(dict.fromkeys(_found(unicodedata.normalize("NFKC", text).translate(_DASHES))))


def _found(text: str) -> Iterator[tuple[str, str]]:
    for kind, pattern, normal in _KINDS:
        rest, end = [], 0
        for match in pattern.finditer(text):
            if value := normal(match.group()):
                yield kind, value
                rest.append(text[end : match.start()])
                end = match.end()
        text = "\n".join([*rest, text[end:]])


def identify(*sets: Sequence[str]) -> tuple[TokenizedTexts, ...]:
    """The identifiers of sets of texts as numbers, in place of their words; the vocabulary holds `kind value`.

    >>> one, other = identify(["x@y.org and 123456"], ["no. 12-34-56"])
    >>> one.ids.tolist(), other.ids.tolist(), list(one.vocabulary)
    ([0, 1], [1], ['email x@y.org', 'number 123456'])
    """
    vocabulary: dict[str, int] = {}
    made = []
    for texts in sets:
        rows = [[f"{kind} {value}" for kind, value in identifiers(text)] for text in texts]
        ids = [vocabulary.setdefault(name, len(vocabulary)) for row in rows for name in row]
        lengths = [len(row) for row in rows]
        made.append(TokenizedTexts(np.array(ids, np.int64), np.array(lengths, np.int64), vocabulary))
    return tuple(made)
