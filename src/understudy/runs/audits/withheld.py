"""The export of an audit's claim, which does not stay: it was made with canaries among the rows.

The claim is the method's own run, which puts its export into its folder. It is removed as soon as the run has ended,
before anybody attacks what the run made. A note made before the run tells a purge that this export is nothing to keep,
should the process die in between; the same command, repeated, removes it too. Another run that puts its own export
there removes the note.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from understudy.errors import InputError
from understudy.locks import locked_folder
from understudy.runs.finished_folders import forget_withheld, remember, withholds
from understudy.runs.placement import EXPORT, leftovers


def check_no_release(out: Path) -> None:
    """Refuse a folder with an export that no audit left there: the audit would remove what a run has released.

    Args:
        out: DIR of the claim's run.

    Raises:
        InputError: naming the folder and how to fix it.
    """
    if (out / EXPORT).exists() and not withholds(out):
        raise InputError(
            f"--out {out.parent}: expected no {EXPORT}/ in {out.name}/ of it, found the one of a run, which the audit "
            "would remove; choose another folder for the audit"
        )


@contextmanager
def withheld_export(out: Path, *, source: str, run: str) -> Iterator[None]:
    """Within it a run fills DIR; its export is gone afterwards. A run that fails leaves the note, and goes on later.

    Args:
        out: DIR.
        source: whose rows the run meets.
        run: its key: should the note outlive it, another run's export in DIR is not meant.
    """
    # A purge looks into the folder of every note.
    out.mkdir(parents=True, exist_ok=True)
    remember(out, source=source, withheld=run)
    yield
    with locked_folder(out):
        for path in (out / EXPORT, *leftovers(out / EXPORT)):
            if path.exists():
                shutil.rmtree(path)
        forget_withheld(out, source=source)
