"""The public seed texts that prompts show as examples (the paper's set Omega)."""

from __future__ import annotations

from understudy import records


def read_seeds(spec: str) -> list[str]:
    """The texts of a public table.

    Args:
        spec: file with a column `text`, `sample:public`, or a hub id; public.

    Raises:
        InputError: no such table, or no column `text` of strings in it.
    """
    texts: list[str] = records.check_texts(records.read_source(spec))["text"].to_pylist()
    return texts
