"""How a run's two folders get their places in DIR: whole, and always both of one run.

Both are filled beside their places first. Then the old export/ goes aside, then the old internal/; then the new export/
comes, then the new internal/. So an internal/ is never beside the export/ of another run, at whichever rename a process
dies, and one lock keeps two runs apart. The next run puts back what was aside, or clears it up. What is put in place is
on the disk before, and the renames are before anything is removed: a loss of power leaves the old results or the new.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from understudy.durable import naming, sync, sync_folder
from understudy.errors import InputError
from understudy.locks import locked_folder
from understudy.owner_only import close_new_files

EXPORT: Final = "export"
INTERNAL: Final = "internal"

Fill = Callable[[Path], None]

_WRITTEN, _REPLACED = ".{}.new", ".{}.old"  # beside the folder while it is put in place


def leftovers(target: Path) -> tuple[Path, Path]:
    """Where a killed process may have left parts of `target`: the new one that it filled, the old one put aside."""
    return target.with_name(_WRITTEN.format(target.name)), target.with_name(_REPLACED.format(target.name))


def check_no_export(out: Path) -> None:
    """Refuse an export that would stand beside the results of a run that exports nothing.

    Raises:
        InputError: naming the folder and how to fix it.
    """
    if (out / EXPORT).exists():
        raise InputError(
            f"--out {out}: holds the {EXPORT}/ of an earlier run, and this run, which adds no noise, exports nothing "
            "to put in its place; choose another folder"
        )


def put_in_place(
    out: Path, fill_internal: Fill, *, fill_export: Fill | None = None, placed: Callable[[], None] = lambda: None
) -> None:
    """Put a run's freshly filled folders in the place of an earlier run's; what a killed process left goes.

    Args:
        out: DIR, locked meanwhile.
        fill_internal: writes into the folder that becomes internal/, closed to other users (0700 and 0600).
        fill_export: writes into the folder that becomes export/; None where the run exports nothing.
        placed: called when both are in place and no other run has touched them yet.

    Raises:
        InputError: a run that exports nothing finds an export; nothing is changed then.
    """
    fills = ({} if fill_export is None else {out / EXPORT: fill_export}) | {out / INTERNAL: fill_internal}
    with locked_folder(out, made=0o777):
        _bring_back(out)
        if fill_export is None:
            check_no_export(out)
        _clear(out)
        try:
            _fill(fills)
            _swap(fills)
        finally:
            _bring_back(out)
            for target in fills:
                _remove(leftovers(target)[0])
        _clear(out)
        placed()


def close_folder(folder: Path) -> None:
    """Close a folder and everything in it to other users: 0700 and 0600."""
    folder.chmod(0o700)
    for path in folder.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)


def _bring_back(out: Path) -> None:
    """Put back what a killed process had put aside, as far as what stands is not newer."""
    export, internal = out / EXPORT, out / INTERNAL
    if export.exists():  # an internal/ that is aside is then another run's
        return
    unreached = leftovers(export)[0].exists() or not internal.exists()
    for target in (internal, export) if unreached else (internal,):
        old = leftovers(target)[1]
        if old.exists() and not target.exists():
            os.replace(old, target)


def _clear(out: Path) -> None:
    for target in (out / EXPORT, out / INTERNAL):
        for left in leftovers(target):
            _remove(left)


def _fill(fills: Mapping[Path, Fill]) -> None:
    """Fill the folders beside their places; each is closed to others until it is full."""
    for target, fill in fills.items():
        fresh, _ = leftovers(target)
        fresh.mkdir(mode=0o700)
        is_closed = target.name == INTERNAL
        if is_closed:
            close_new_files(fresh)
        with naming(target):
            fill(fresh)
        if is_closed:
            close_folder(fresh)
        else:
            fresh.chmod(0o755)
        sync_folder(fresh)


def _swap(fills: Mapping[Path, Fill]) -> None:
    """Four renames, or fewer; in this order what stands is of one run after each of them."""
    for target in fills:
        if target.exists():
            os.replace(target, leftovers(target)[1])
    for target in fills:
        os.replace(leftovers(target)[0], target)
        sync(target.parent)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
