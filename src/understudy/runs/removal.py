"""What a purge removes from the folders that users gave their runs, evaluations, comparisons and audits.

Whose a folder is, its own file says: run.json in internal/, statement.json in export/, sources.json beside the report
of an evaluation, a comparison or an audit. An export that was released stands for itself and stays; one with
`--share-real-rows` was not, and goes like everything else made of the rows. So does that of an audit's claim, which a
kill left: it was made with canaries among the rows.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from understudy.locks import locked_folder
from understudy.runs.evaluations.report import report_files
from understudy.runs.evaluations.unregistered import SOURCES_FILE, forget_rows, sources_told
from understudy.runs.finished_folders import is_noted, is_withheld, noted
from understudy.runs.folders import RUN_FILE, STATEMENT
from understudy.runs.placement import EXPORT, INTERNAL, leftovers

_SAYS_WHOSE = {INTERNAL: RUN_FILE, EXPORT: STATEMENT}


@dataclass(frozen=True)
class Removed:
    """What a purge did in users' folders.

    Attributes:
        internal: the folders DIR/internal that are gone, and parts of such that killed runs left beside them.
        exports: the same of DIR/export; only private ones, and those of audits.
        reports: the folders that reports of evaluations, comparisons and audits are gone from.
        left: what may hold something of the source yet, each with the reason; the next purge looks there again.
    """

    internal: list[str] = field(default_factory=list)
    exports: list[str] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def remove_private(source: str) -> Removed:
    """Remove what runs of `source` left in users' folders, but for what was released.

    What another source's run put there stays, and so does whatever does not say whose it is under a name that a user
    may have chosen. No link is followed. A note stays until nothing of the source is left in its folder. A folder that
    this empties goes too.

    Raises:
        InputError: when the private root cannot be written.
    """
    done, stuck = Removed(), set[Path]()
    # Whoever notes a folder while others are cleared may still have read from those.
    while found := [(note, out) for note, out in noted(source) if note not in stuck]:
        stuck |= _remove_from(found, source, done)
    _remove_emptied(done)
    return done


def _remove_emptied(done: Removed) -> None:
    """Remove each DIR of which something was removed and nothing is left, those within others first."""
    emptied = {Path(path).parent for path in (*done.internal, *done.exports)} | {Path(path) for path in done.reports}
    for out in sorted(emptied, key=lambda path: len(path.parts), reverse=True):
        # A folder that is in use, or not ours to remove, stays as it is: it holds nothing.
        with suppress(OSError), locked_folder(out):
            if not is_noted(out) and not out.samefile(Path.cwd()):
                out.rmdir()


def _remove_from(folders: Sequence[tuple[Path, Path]], source: str, done: Removed) -> set[Path]:
    """Clear these folders, and remove the note of each that is clear; gives the notes that stay."""
    stuck = set()
    for note, out in folders:
        try:
            with locked_folder(out):  # a run may be filling it
                withheld = _clear_export(out, done) if is_withheld(note) else []
                left = [*withheld, *_clear(out, source, done), *_clear_report(out, source, done)]
                if not left:
                    note.unlink(missing_ok=True)
        except (FileNotFoundError, NotADirectoryError):
            forget_rows(out)
            left = [f"{out}: no such folder any more; if it was moved, what it held of {source!r} moved with it"]
        except OSError as error:
            left = [f"{out}: {error.strerror}"]
        if left:
            stuck.add(note)
        done.left.extend(left)
    return stuck


def _clear(out: Path, source: str, done: Removed) -> list[str]:
    """Remove what is private of one source from its folder; gives what could not be removed, with the reasons."""
    left = []
    for target, removed in ((out / INTERNAL, done.internal), (out / EXPORT, done.exports)):
        says_whose = _SAYS_WHOSE[target.name]
        for path in (target, *leftovers(target)):
            private = _is_private_of(source, path / says_whose) if os.path.lexists(path) else False
            if private is False:
                continue
            # A part that a kill left is of use to nobody; under the plain names a user may keep something else.
            ours = private or path != target or _is_empty(path)
            if path.is_symlink():
                left.append(f"{path}: a link, which is not followed; remove it and what it leads to")
            elif not ours:
                left.append(f"{path}: no {says_whose} in it says whose it is; look at it and remove it")
            elif why := _erase(path, last=says_whose):
                left.append(f"{path}: {why}")
            else:
                removed.append(str(path))
    return left


def _clear_export(out: Path, done: Removed) -> list[str]:
    """Remove an export that an audit withholds, whatever it says; gives what could not be removed, with the reasons."""
    left = []
    for path in (out / EXPORT, *leftovers(out / EXPORT)):
        if path.is_symlink():
            left.append(f"{path}: a link, which is not followed; remove it and what it leads to")
        elif path.exists():
            why = _erase(path, last=STATEMENT)
            (left if why else done.exports).append(f"{path}: {why}" if why else str(path))
    return left


def _clear_report(out: Path, source: str, done: Removed) -> list[str]:
    """Remove a report that is made of the source's rows; gives what could not be removed, with the reasons."""
    files, told = report_files(out), sources_told(out)
    if told is None:
        return [f"{path}: no {SOURCES_FILE} beside it says whose it is; look at it and remove it" for path in files]
    if source not in told:
        return []
    # What says whose it is goes last, so that after a kill the next purge knows whose the rest is.
    for path in (*files, out / SOURCES_FILE):
        if path.is_symlink():
            return [f"{path}: a link, which is not followed; remove it and what it leads to"]
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            return [f"{path}: {error.strerror or type(error).__name__}"]
    forget_rows(out)
    done.reports.append(str(out))
    return []


def _is_private_of(source: str, file: Path) -> bool | None:
    """Whether the folder of this file holds what is private of a source; None where the file does not say."""
    try:
        said = json.loads(file.read_bytes())
        return bool(said["source"] == source and (file.name != STATEMENT or said["verdict"] == "none"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_empty(folder: Path) -> bool:
    """Whether this is a folder without anything in it: a kill came before the last step of its removal."""
    return folder.is_dir() and not any(folder.iterdir())


def _erase(folder: Path, *, last: str) -> str:
    """Remove a folder; the file `last` goes last, so that after a kill the next purge knows whose the rest is.

    Returns:
        Why it could not be done; empty when it is.
    """
    try:
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != last:
                path.unlink()
        shutil.rmtree(folder)
    except OSError as error:
        return error.strerror or type(error).__name__
    return ""
