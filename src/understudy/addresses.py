"""What the settings may name a store, a ledger or a tracking database by."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

SQLITE: Final = "sqlite:///"
# User and password. A password may hold what would end a host: a database's driver takes it up to the @.
_LOGIN: Final = re.compile(r"(?:^(?!.*://)|(?<=://))(?:[^/?#]*@|[^/?#@:]*:[^@]*@)")


def lock_of_file(database: Path) -> Path:
    """What writers of a SQLite file of MLflow lock."""
    return database.with_name(f"{database.name}.lock")


def exchange_address(given: str) -> str:
    """The address of the exchange store: an absolute path, or a URL of fsspec as it is.

    Raises:
        ValueError: the URL holds a password or a query, or means another place than it seems to, or none that lasts.
    """
    if given.startswith("file:") and not given.startswith(("file:///", "file://localhost/")):
        raise ValueError("expected file:///ABSOLUTE/FOLDER or a path, found a file URL without three slashes")
    if "://" not in given:
        return os.path.abspath(os.path.expanduser(given))
    if any(part.startswith("memory:") for part in given.split("::")):
        raise ValueError(
            "expected a store that lasts, found memory://, which ends with the process: what was paid for would be "
            "gone; name a folder or a bucket"
        )
    if "?" in given or any(":" in login for login in _LOGIN.findall(given)):
        raise ValueError(
            "expected a URL without a password or query, which every reference to an artifact would repeat, found one "
            "with it; give it to fsspec, as FSSPEC_<PROTOCOL>_PASSWORD or in its configuration file"
        )
    return given


def public_address(address: str) -> str:
    """An address as it may be shown: a URL without user, password and query, any of which may be secret.

    >>> public_address("postgresql://me:word@host:5432/ledger?password=word")
    'postgresql://host:5432/ledger'
    """
    shown = _LOGIN.sub("", address)
    return shown.partition("?")[0] if "://" in shown else shown


def ledger_address(given: str) -> str:
    """The URL of the ledger. A relative path would be another ledger in each folder, with every budget unspent.

    Raises:
        ValueError: it is none, holds a relative path, or a path with a question mark, which ends the name of the file.
    """
    kind, _, path = given.partition(":///")
    if kind.startswith("sqlite") and "/" in path.partition("?")[2]:
        raise ValueError("expected the path of a file without a question mark, where a URL ends; name another folder")
    if "://" not in given or (kind.startswith("sqlite") and not os.path.isabs(path)):
        raise ValueError(
            "expected sqlite:////ABSOLUTE/FILE or postgresql://..., found something else or a relative path"
        )
    return given


def tracking_address(given: str) -> str:
    """A tracking URI of MLflow. A relative path of a database, as MLflow's documents have it, is one from here."""
    return SQLITE + os.path.abspath(given.removeprefix(SQLITE)) if given.startswith(SQLITE) else given
