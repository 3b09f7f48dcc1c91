"""Digests of the rows of a checked table: oracles, so only HMACs of them may leave."""

import hashlib
import re
import unicodedata
from collections.abc import Sequence

import pyarrow as pa

from understudy.data.columns import text_columns

# Letters and digits below which a text is no one's in particular, such as "n/a" or "Yes!": unrelated sources share it.
FEWEST_LETTERS = 5
_NEITHER_LETTER_NOR_DIGIT = re.compile(r"[\W_]+")


def row_digests(table: pa.Table) -> list[bytes]:
    """One sha256 per row of a checked table, over letters and digits of its texts: an oracle, so only HMACs may leave.

    Unicode form, case, accents, punctuation and white space make no difference, and labels and client identifiers are
    left out: a copy with another label or under another name is still the same person's text. A row of fewer than
    `FEWEST_LETTERS` is no one's in particular, as the null record is, and gets b"", which matches nothing.
    """
    rows = zip(*(map(_letters, table[name].to_pylist()) for name in text_columns(table)), strict=True)
    return [_digest(row) if sum(map(len, row)) >= FEWEST_LETTERS else b"" for row in rows]


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
    """The text without differences of Unicode form, case and white space."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _letters(text: str | None) -> bytes:
    """The letters and digits of a text, without case, accents and what else Unicode's compatible forms tell apart."""
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text or "").casefold())
    return _NEITHER_LETTER_NOR_DIGIT.sub("", folded).encode("utf-8", "surrogatepass")


def _digest(parts: Sequence[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
