"""The public seed texts that prompts show as examples (the paper's set Omega)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from understudy.data import tables
from understudy.data.public_tables import check_as_begun
from understudy.errors import InputError


def read_seeds(spec: str, *, digest: str = "") -> list[str]:
    """The texts of a public table.

    Args:
        spec: file with a column `text`, `sample:public`, or `hub:OWNER/NAME`; public.
        digest: `seeds_digest` of the texts that are meant; empty takes any.

    Raises:
        InputError: no such table, no column `text` of strings in it, or other texts than those meant.
    """
    try:
        texts: list[str] = tables.check_texts(tables.read_source(spec))["text"].to_pylist()
    except InputError as error:
        raise InputError(f"seeds={spec}: {error}") from None
    check_as_begun(seeds_digest(texts), of="texts", named=f"seeds={spec}", begun=digest)
    return texts


def seeds_digest(texts: Sequence[str]) -> str:
    """The sha256 of the texts in their order: a path alone does not say what was read."""
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()
