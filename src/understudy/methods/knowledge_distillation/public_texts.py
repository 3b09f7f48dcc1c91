"""Public instructions that a run reads by name; their digest is fixed when it begins, and belongs to its settings."""

from __future__ import annotations

import hashlib
import json

from understudy.data.columns import strings
from understudy.data.public_tables import check_as_begun
from understudy.data.readers import read_source
from understudy.errors import InputError
from understudy.methods.knowledge_distillation.config import FilterConfig


def read_instructions(spec: str, *, setting: str, digest: str = "") -> list[str]:
    """The column `instruction` of a public table.

    Args:
        spec: file, `sample:NAME` or `hub:OWNER/NAME`.
        setting: that names it, for errors.
        digest: `instructions_digest` of the texts that are meant; empty takes any.

    Raises:
        InputError: no such table, no column `instruction` of texts in it, or others than those the run began with.
    """
    try:
        texts: list[str] = strings(read_source(spec), "instruction").to_pylist()
    except InputError as error:
        raise InputError(f"{setting}={spec}: {error}") from None
    check_as_begun(_digest(texts), of="texts", named=f"{setting}={spec}", begun=digest)
    return texts


def compared_with(filters: FilterConfig) -> list[str]:
    """Public instructions that synthetic ones must not copy; none where the settings name none.

    Raises:
        InputError: as `read_instructions`.
    """
    if not filters.against:
        return []
    return read_instructions(filters.against, setting="filters.against", digest=filters.against_digest)


def instructions_digest(spec: str, *, setting: str) -> str:
    """What identifies the texts of a public table; empty where a setting names none.

    Raises:
        InputError: as `read_instructions`.
    """
    return "" if spec in ("", "builtin") else _digest(read_instructions(spec, setting=setting))


def _digest(texts: list[str]) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
