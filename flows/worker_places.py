"""Places that a worker's run may not name by a relative path.

A worker gives each run a temporary folder to start in and removes it afterwards, with all that lies in it. A ledger
there would be a new one for every run, with every budget unspent.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from prefect.runtime import deployment

from understudy.errors import InputError

_FOLDERS = ("UNDERSTUDY_HOME", "UNDERSTUDY_EXCHANGE", "UNDERSTUDY_MODELS")
# The ledger's may be relative nowhere.
_DATABASES = ("UNDERSTUDY_MLFLOW_URI", "UNDERSTUDY_SERVER_MLFLOW_URI")


def check_places(**folders: str) -> None:
    """Refuse relative paths in a deployment's run: of the environment, and of its request.

    Args:
        folders: of the request, by the name of the parameter.

    Raises:
        InputError: naming the first one.
    """
    if not deployment.id:
        return
    for name, path in (*folders.items(), *_of_the_environment()):
        if not Path(path).expanduser().is_absolute():
            raise InputError(
                f"{name}={path}: expected an absolute path, found a relative one: a worker gives each run a folder of "
                "its own to start in and removes it afterwards; begin the path with /"
            )


def _of_the_environment() -> Iterator[tuple[str, str]]:
    for name, value in os.environ.items():
        kind = name.upper()
        if kind in _FOLDERS and "://" not in value:
            yield name, value
        if kind in _DATABASES and value.startswith("sqlite") and ":///" in value:
            yield name, value.partition(":///")[2]
