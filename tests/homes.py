"""The environment of a home in a temporary folder, for tests in this process and for the processes that they start."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest


def home_environment(root: Path) -> dict[str, str]:
    """A home at `root` with its own exchange store and MLflow database, one thread and the CPU.

    `TESTS_DEVICE=cuda` has flows compute on a GPU instead: what must hold on the one holds on the other.
    """
    return {
        "UNDERSTUDY_HOME": str(root),
        "UNDERSTUDY_EXCHANGE": str(root / "exchange"),
        "UNDERSTUDY_MODELS": str(root / "models"),
        "UNDERSTUDY_MLFLOW_URI": f"sqlite:///{root / 'mlflow.db'}",
        "UNDERSTUDY_THREADS": "1",
        "UNDERSTUDY_DEVICE": os.environ.get("TESTS_DEVICE", "cpu"),
        "UNDERSTUDY_PRECISION": "float32",
        "HF_DATASETS_CACHE": str(root / "datasets"),
        "TRITON_CACHE_DIR": str(root / "triton"),
    }


def bare_environment() -> dict[str, str]:
    """This process's environment without any setting of Understudy or Prefect."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "UNDERSTUDY_"))}


def command_environment(home: Path) -> dict[str, str]:
    """Of a command of the shell that is quiet, and has no Prefect server but one of its own."""
    own = {"PREFECT_HOME": str(home / "prefect"), "PREFECT_LOGGING_LEVEL": "CRITICAL"}
    return bare_environment() | home_environment(home) | own


def start_command(words: Iterable[object], home: Path) -> subprocess.Popen[str]:
    """One process for one command of the shell, with a Prefect server of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "understudy.flows.cli", *map(str, words)],
        env=command_environment(home),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[str]) -> None:
    """The whole group: a Prefect server that the run started goes with it, as when a machine is lost."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def fix_root_key(patch: pytest.MonkeyPatch) -> None:
    """Ledgers that this process founds have one root key: who is held out, and how an audit's coins fall, is fixed.

    Of a few clients nobody, or everybody, is held out by one random key in some thousands, and such a run is refused.
    Secrets, the keys of sources, salts, and with them all noise, are random as ever.
    """
    from understudy.privacy.ledger import stored_secrets

    patch.setattr(stored_secrets, "secrets", SimpleNamespace(token_bytes=lambda size: b"r" * size))


def has_access_lists(folder: Path) -> bool:
    """Whether the file system of a folder has default access lists of POSIX; a folder without one is asked."""
    try:
        os.getxattr(folder, "system.posix_acl_default")
    except (AttributeError, OSError) as error:
        return getattr(error, "errno", None) == errno.ENODATA
    return True
