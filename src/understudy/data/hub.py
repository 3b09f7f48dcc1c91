"""Reading a Hugging Face data set, in a process of its own.

`datasets` leaves the files that it fetches in the cache of `huggingface_hub`, where public models are too. Where that
cache is, a process decides once. Another process can have its own under the private root, closed to other users, where
`understudy gc` and `understudy purge` remove it.
"""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pyarrow as pa

from understudy.durable import OF_A_DISK, is_of_disk
from understudy.errors import InputError
from understudy.settings import private_directory, settings

HUB = "hub:"
DEFAULT_SPLIT = "train"
_TABLE = "table.arrow"
_FAILURE = "failure"


def read_hub(spec: str) -> pa.Table:
    """Read one split of a data set of the hub.

    What is fetched stays under the private root, so that it is read again without a network.

    Args:
        spec: `hub:OWNER/NAME`, with an optional `#SPLIT`.

    Returns:
        Its rows, without the metadata of `datasets`.

    Raises:
        InputError: when neither the hub nor what was fetched earlier gives it.
    """
    name, _, split = spec.removeprefix(HUB).partition("#")
    cache = private_directory(settings().private_root / "datasets")
    with tempfile.TemporaryDirectory(dir=settings().temporary_root) as folder:
        code = _run([name, split or DEFAULT_SPLIT, str(cache), folder], _environment(cache))
        if code in OF_A_DISK:
            raise InputError(
                f"{spec}: expected room for it under {settings().private_root}, found: {os.strerror(code)}; make "
                "room on that disk and run the same command again"
            )
        if code != 0:
            failure = Path(folder, _FAILURE)
            found = failure.read_text() if failure.exists() else f"the process that reads it ended with {code}"
            raise InputError(
                f"{spec}: expected a data set that the hub or an earlier download gives, found {found}; "
                "check the spelling and the network, or save it as Parquet and pass the path"
            )
        with pa.OSFile(os.path.join(folder, _TABLE)) as file:
            return pa.ipc.open_file(file).read_all()


def _environment(cache: Path) -> dict[str, str]:
    """With the caches of the libraries under `cache`, and the import path of this process."""
    return os.environ | {
        "HF_HUB_CACHE": str(cache / "hub"),
        "HF_XET_CACHE": str(cache / "xet"),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


def _run(arguments: list[str], environment: dict[str, str]) -> int:
    """The exit code of this module, run as a program; it ends with this process too."""
    with subprocess.Popen(
        # Not -m alone: a user's file of the name of a library, in the working directory, would be imported.
        [sys.executable, "-P", "-m", __name__, *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        umask=0o077,
    ) as process:
        return process.wait()


def _end_with_parent() -> None:
    """End when the other process ends or waits no more: its end of stdin is closed then."""
    os.read(0, 1)
    os._exit(1)


def _errno_of_disk(error: BaseException | None) -> int | None:
    """What a disk that is full or fails says of itself, where an error of the library arose from that."""
    passed: list[BaseException] = []
    while error is not None and error not in passed:
        if isinstance(error, OSError) and is_of_disk(error):
            return error.errno
        passed.append(error)
        error = error.__cause__ or error.__context__
    return None


def main() -> None:
    """Write the table that the other process wants, or the name of the error's type: its text may quote rows."""
    name, split, cache, folder = sys.argv[1:]
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    try:
        import datasets

        data = datasets.load_dataset(name, split=split, cache_dir=cache)
        table = data.with_format("arrow")[:].replace_schema_metadata(None)
        with pa.OSFile(os.path.join(folder, _TABLE), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    except Exception as error:  # every kind of network, cache and format error of the library
        if (number := _errno_of_disk(error)) is not None:
            sys.exit(number)  # a full disk takes no word of it either
        Path(folder, _FAILURE).write_text(type(error).__name__)
        sys.exit(1)


if __name__ == "__main__":
    main()
