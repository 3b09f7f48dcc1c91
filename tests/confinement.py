"""Nothing of a test lies outside its temporary folder: writes into the checkout are refused where they happen.

Three nets, for none sees everything: each test runs in its own temporary folder, so that a relative path leads there;
an audit hook stops what Python itself writes into the checkout; and at the end the checkout must hold the files it
held before, which also catches libraries and other processes.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Tools keep their caches here, and `make` what it builds; the rest of the checkout is not written while tests run.
CACHES = frozenset(
    {".git", ".venv", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", "__pycache__", "build"}
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Audit event -> which of its arguments are paths that are made or filled; `open` is looked at apart, for its flags.
MAKING = {
    "os.mkdir": (0,),
    "os.rename": (0, 1),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "sqlite3.connect": (0,),
}
_CHANGES = MAKING | dict.fromkeys(("os.remove", "os.rmdir", "os.chmod"), (0,))
_LOOKED_AT = frozenset({"open", *_CHANGES})


class WrittenOutside(BaseException):
    """A write into the checkout; no `except Exception` of the code under test can swallow it."""


class Confinement:
    """An audit hook that is armed while a test runs; a hook once added cannot be taken away."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.armed = False
        self._added = False

    def arm(self) -> None:
        """Refuse writes into the checkout from now on."""
        if not self._added:
            sys.addaudithook(self._look)
            self._added = True
        self.armed = True

    def disarm(self) -> None:
        """Let writes pass: pytest itself writes between tests."""
        self.armed = False

    def _look(self, event: str, arguments: tuple) -> None:
        # First what rules out almost every event: there are thousands a second, `builtins.id` for one.
        if event not in _LOOKED_AT or not self.armed:
            return
        if event == "open":
            path, _, flags = arguments
            places = (path,) if isinstance(flags, int) and flags & WRITING else ()
        else:
            places = tuple(arguments[index] for index in _CHANGES[event])
        for place in places:
            if isinstance(place, str | bytes | os.PathLike) and self._is_ours(place):
                raise WrittenOutside(f"{event} of {os.fsdecode(place)}: tests write into tmp_path only")

    def _is_ours(self, place: str | bytes | os.PathLike) -> bool:
        path = os.path.abspath(os.fsdecode(place))
        if not path.startswith(f"{self.root}{os.sep}"):
            return False
        return CACHES.isdisjoint(path[len(str(self.root)) + 1 :].split(os.sep))


def files_of(root: Path = ROOT) -> frozenset[str]:
    """Every file of the checkout but caches, as paths relative to it."""
    found = []
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in CACHES and not name.endswith(".egg-info")]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in files]
    return frozenset(found)


def told_of(before: frozenset[str], after: frozenset[str]) -> str:
    """What came into the checkout and went from it while tests ran, and who may have done it; empty if nothing."""
    changes = {"came": sorted(after - before), "went": sorted(before - after)}
    told = [
        f"{verb}: {', '.join(files[:10])}{f' and {len(files) - 10} more' if len(files) > 10 else ''}"
        for verb, files in changes.items()
        if files
    ]
    if not told:
        return ""
    return (
        f"expected the files of {ROOT} to stay as they are while tests ran; {'; '.join(told)}. Either a process that a "
        "test started wrote outside its temporary folder, or something beside the tests did, such as a run with an "
        "--out here, git or an editor: then run the tests again with nothing beside them, or in a clone of their own"
    )
