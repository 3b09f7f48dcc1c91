"""Which charges were made for runs that were compared, so that every statement under such a charge says so.

Whoever compares runs on real rows and then repeats the best of them, with more samples or for another folder, goes on
under its charge. One small file for each charge, in the private root; it holds public values only.
"""

from __future__ import annotations

import hashlib
import json
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
        if (known := _noted(key)) != (sizes := sorted({*known, runs})):
            write_atomically(_place(key), json.dumps(sizes).encode())


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
    """Sizes of the comparisons that a charge was made for; a damaged file says nothing."""
    try:
        return [int(size) for size in json.loads(_place(key).read_bytes())]
    except (FileNotFoundError, ValueError, TypeError):
        return []


def _place(key: str) -> Path:
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    return private_directory(settings().private_root / "compared") / f"{name}.json"
