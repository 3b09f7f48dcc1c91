"""Which charges were made for runs that were compared, so that every statement under such a charge says so.

Whoever compares runs on real rows and then repeats the best of them, with more samples or for another folder, goes on
under its charge. An empty file for each charge and comparison, in the private root; its name is public.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

from understudy.durable import write_atomically
from understudy.methods.method import Description
from understudy.settings import private_directory, settings


def note_comparison(keys: Collection[str], *, runs: int) -> None:
    """Note that charges are those of a comparison; the same again changes nothing.

    Args:
        keys: `run_plan.request_key` of each.
        runs: how many are compared.
    """
    for key in keys:
        write_atomically(_root() / f"{_name(key)}-{runs}", b"")


def with_comparisons(description: Description, key: str, *runs: int) -> Description:
    """What a run says of itself, with each comparison that its charge was made for, once.

    Args:
        description: of the run.
        key: `run_plan.request_key` of its charge.
        *runs: sizes of comparisons that are not noted yet.
    """
    said = description.choices
    for size in sorted({*_noted(key), *runs}):
        sentence = _in_words(size)
        said = said if sentence in said else f"{said} {sentence}"
    return description.model_copy(update={"choices": said})


def _in_words(runs: int) -> str:
    return (
        f"Its charge is that of one of {runs} runs that were fixed in advance and compared on real rows: whoever "
        "chooses among them by these figures tells something of the rows that no epsilon covers."
    )


def _noted(key: str) -> list[int]:
    """Sizes of the comparisons that a charge was made for."""
    return [int(path.name.rpartition("-")[2]) for path in _root().glob(f"{_name(key)}-*")]


def _name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _root() -> Path:
    return private_directory(settings().private_root / "compared")
