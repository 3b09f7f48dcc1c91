"""Digests of the rows of a checked table: oracles, so only HMACs of them may leave."""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, permutations

import pyarrow as pa

from understudy.data.columns import text_columns

# Bytes of letters and digits below which a text is no one's in particular, such as "n/a" or "Yes!": unrelated sources
# share it. Of bytes, for a Chinese character says as much as several Latin letters.
FEWEST_LETTERS = 5
# Columns of text that are looked at for pairs.
_MOST_PAIRED = 6
_OF_PAIRS = ("instruction", "response")
# What nobody sees: control characters but for white space, and Unicode's default-ignorable ones, such as soft hyphens,
# joiners and spaces without a width, byte order marks, fillers and selectors of variants.
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_NEITHER_LETTER_NOR_DIGIT = re.compile(r"[\W_]+")
# Small letters of Cyrillic and of Greek that look like Latin ones, or whose capitals do, and those Latin ones.
_OTHER_SCRIPTS = (
    ("авекмнорстухѕіјһԛԝ", "abekmhopctyxsijhqw"),
    ("αβεζηικμνορτυχ", "abezhikmnoptyx"),
)
# What programs write for a hyphen, an apostrophe, a quotation mark and a slash; other forms of them are Unicode's own.
_SIGNS = {
    "-": "\u058a\u05be\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212",
    "'": "`\u00b4\u02b9\u02bb\u02bc\u02bd\u02be\u02bf\u2018\u2019\u201a\u201b\u2032\u2035\ua78c",
    '"': "\u00ab\u00bb\u201c\u201d\u201e\u201f",
    "/": "\u2044\u2215",
}
_LOOKS = str.maketrans(
    {other: latin for letters in _OTHER_SCRIPTS for other, latin in zip(*letters, strict=True)}
    | {other: sign for sign, others in _SIGNS.items() for other in others}
)


def row_digests(table: pa.Table) -> list[bytes]:
    """One sha256 per row of a checked table, over letters and digits of its texts: an oracle, so only HMACs may leave.

    Unicode form, case, accents, punctuation and white space make no difference, and labels and client identifiers are
    left out: a copy with another label or under another name is still the same person's text. A row of fewer bytes than
    `FEWEST_LETTERS` is no one's in particular, as the null record is, and gets b"", which matches nothing.
    """
    rows = zip(*(map(_letters, table[name].to_pylist()) for name in text_columns(table)), strict=True)
    return [_digest(row) if sum(map(len, row)) >= FEWEST_LETTERS else b"" for row in rows]


def text_digests(table: pa.Table, columns: Sequence[str]) -> dict[bytes, int]:
    """The sha256 of each different text -> how many bytes its letters and digits have, whatever row it stands in.

    Texts are compared as by `row_digests`; those of fewer than `FEWEST_LETTERS` are left out. An oracle like it.

    Args:
        table: as read, or checked.
        columns: to look at; those that hold no text are passed over.
    """
    found: dict[bytes, int] = {}
    for name in columns:
        for chunk in _texts(table[name]):
            letters = map(_letters, chunk)
            found.update((_digest([text]), len(text)) for text in letters if len(text) >= FEWEST_LETTERS)
    return found


def pair_digests(table: pa.Table) -> Iterator[dict[bytes, int]]:
    """As `text_digests`, of what rows of pairs would be, for each two columns of text in either order.

    The columns that a table of pairs is read by come first, wherever they stand.
    """
    names = sorted(table.column_names, key=lambda name: name not in _OF_PAIRS)
    columns = (list(chain.from_iterable(_texts(table[name]))) for name in names)
    whole = [list(map(_letters, texts)) for texts in columns if len(texts) == table.num_rows]
    for first, second in permutations(whole[:_MOST_PAIRED], 2):
        pairs = ((one, other, len(one) + len(other)) for one, other in zip(first, second, strict=True))
        yield {_digest([one, other]): size for one, other, size in pairs if size >= FEWEST_LETTERS}


def are_mostly_the_same(table: pa.Table, other: pa.Table) -> bool:
    """Whether two checked tables hold the same texts, or one of them most of the other's. Private.

    Of the different texts of the smaller one more than half stand in the larger one, and once there: what many rows
    say, as an answer of one word, tables that share no row have in common. Case and white space make no difference, and
    rows without a word count for neither.
    """
    smaller, larger = sorted((_said(table), _said(other)), key=len)
    return (smaller == larger and bool(larger)) or 2 * sum(larger[text] == 1 for text in smaller) > len(smaller)


def _said(table: pa.Table) -> Counter[tuple[str, ...]]:
    """How many rows say each text; null records left out."""
    rows = zip(*(table[name].to_pylist() for name in text_columns(table)), strict=True)
    texts = (tuple(normalise(text) for text in row) for row in rows if row[0] is not None)
    return Counter(text for text in texts if any(text))


def client_digests(table: pa.Table) -> list[bytes]:
    """One sha256 per row of a checked table of clients, over the identifier; none for any other table.

    An oracle like `row_digests`. Identifiers are compared by their letters and digits too, however few.
    """
    if "client_id" not in table.column_names:
        return []
    clients = table["client_id"].to_pylist()
    digests = {client: _digest([_letters(client) or normalise(client).encode()]) for client in set(clients)}
    return [digests[client] for client in clients]


def canonical_digest(table: pa.Table) -> bytes:
    """The sha256 of a table's exact content: names, types and values in order, however it is chunked.

    An oracle like `row_digests`: it may leave only as an HMAC under the source's key.
    """
    digest = hashlib.sha256()
    for field in table.schema:
        digest.update(_digest([field.name.encode(), str(field.type).encode()]))
        for value in table[field.name].to_pylist():
            # The type is in the header, so repr need only tell values of one type apart.
            digest.update(_digest([b"" if value is None else b"=" + repr(value).encode("utf-8", "surrogatepass")]))
    return digest.digest()


def normalise(text: str) -> str:
    r"""The text without differences of Unicode form, case and white space, and without what nobody sees.

    >>> normalise("Ann\u200b  Lee") == normalise("\ufeffann lee")
    True
    """
    shown = _INVISIBLE.sub("", text)
    return " ".join(unicodedata.normalize("NFKC", shown).casefold().split())


def look(identifier: str) -> str:
    r"""What somebody sees of an identifier: normalised, with one sign for all dashes, apostrophes and like letters.

    A keyboard of another script, or a program that corrects punctuation, writes the others.

    >>> look("O\u2019Brien") == look("O'BRIEN"), look("\u0421-12") == look("C\u201312"), look("a-1") == look("a1")
    (True, True, False)
    """
    return normalise(identifier.translate(_LOOKS)).translate(_LOOKS)


def _texts(column: pa.ChunkedArray) -> Iterator[list[str | None]]:
    """The texts of a column chunk by chunk, with a mark in the place of what is no UTF-8; none of any other column."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        for chunk in column.chunks:
            raw = chunk.cast(pa.large_binary()).to_pylist()
            yield [None if text is None else text.decode("utf-8", "replace") for text in raw]


def _letters(text: str | None) -> bytes:
    """The letters and digits of a text, without case, accents and what else Unicode's compatible forms tell apart."""
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text or "").casefold())
    return _NEITHER_LETTER_NOR_DIGIT.sub("", folded).encode("utf-8", "surrogatepass")


def _digest(parts: Sequence[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
