"""What a run needs around it, looked at before anything is charged; `understudy doctor` looks at the same list.

Each check is a plain function that does the thing on a small scale - writes a file, asks a server, draws two texts -
and returns in words what it found, or raises an `InputError` that says what was expected and how to fix it. Nothing
private is written, and what a check makes it takes away again. No check waits longer than `answers.PATIENCE_S`, but
that of a Prefect server.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.runs.checks.devices import gpu
from understudy.runs.checks.generation import generation
from understudy.runs.checks.prefect_server import prefect_server
from understudy.runs.checks.stores import exchange_store, private_store
from understudy.runs.checks.tracking import tracking
from understudy.runs.folders import try_folder
from understudy.settings import settings

if TYPE_CHECKING:
    from understudy.models.loading import LoadedModel

Check = Callable[[], str]


def checks(*, out: Path | None, base: Callable[[], LoadedModel] | None) -> dict[str, Check]:
    """The one list, in the order in which a run meets them; the server zone has no private store.

    Args:
        out: the folder of a run's results; None leaves that check out.
        base: gives the base model; None leaves its check out.
    """
    return {
        **({"out": lambda: try_folder(out)} if out is not None else {}),
        **({"private store": private_store} if settings().zone != "server" else {}),
        "exchange store": exchange_store,
        "tracking": tracking,
        "prefect": prefect_server,
        "gpu": gpu,
        **({"generation": lambda: generation(base())} if base is not None else {}),
    }


def before_charge(out: Path, base: LoadedModel | None) -> None:
    """Run every check for a run that is about to be charged, or that goes on after its charge was released.

    Args:
        out: the folder of its results.
        base: the base model; None where nothing is left to charge, so that it need not be loaded.

    Raises:
        InputError: of the first check that fails.
    """
    for look in checks(out=out, base=None if base is None else lambda: base).values():
        look()
