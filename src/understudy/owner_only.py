"""Files of private folders are closed to other users from their first byte, whoever writes them.

Prefect, SQLite, pyarrow and numpy make files as the user's umask says, mostly 0644. A umask belongs to a whole process,
where exports are written too and which may be the user's own. A default access list of POSIX belongs to a folder: what
is made in it is closed, and a folder made in it has the same list.
"""

from __future__ import annotations

import os
import pwd
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

_NAME: Final = "system.posix_acl_default"
_VERSION: Final = 2
_OWNER, _GROUP, _OTHERS, _NOBODY = 0x01, 0x04, 0x20, 0xFFFFFFFF
_EVERYTHING: Final = 7
# As Linux keeps it: the version, and then (who, what they may, an id where it is somebody else's).
_LIST: Final = struct.pack("<I", _VERSION) + b"".join(
    struct.pack("<HHI", who, allowed, _NOBODY) for who, allowed in ((_OWNER, _EVERYTHING), (_GROUP, 0), (_OTHERS, 0))
)


def close_new_files(folder: Path) -> None:
    """What is made in `folder` from now on is this user's only: files 0600, folders 0700; what is there stays as it is.

    Does nothing on a file system without access lists, where the folder's own mode has to do.
    """
    if not hasattr(os, "getxattr"):
        return
    with suppress(OSError):
        if os.getxattr(folder, _NAME) == _LIST:
            return
    with suppress(OSError):
        os.setxattr(folder, _NAME, _LIST)


def is_own(path: Path) -> bool:
    """Whether a place is of this user."""
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return False


def other_owner(path: Path) -> str | None:
    """The name of the user whose a place is, where that is somebody else than this one, who is not root."""
    try:
        owner = path.stat().st_uid
    except OSError:
        return None
    return None if os.geteuid() in (0, owner) else _name(owner)


def remedy(path: Path, *, otherwise: str = "fix it") -> str:
    """What to do about a place in the home that this user cannot use; `otherwise`, where it is no other user's."""
    owner = other_owner(path)
    if owner is None:
        return otherwise
    place = path.parent if is_own(path.parent) else path
    return (
        f"it is of user {owner}, as after a command under sudo, so give it back: sudo chown -R {_name(os.geteuid())} "
        f"{place}"
    )


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
