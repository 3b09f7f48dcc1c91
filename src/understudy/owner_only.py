"""Files of private folders are closed to other users from their first byte, whoever writes them.

Prefect, SQLite, pyarrow and numpy make files as the user's umask says, mostly 0644. A umask belongs to a whole process,
where exports are written too and which may be the user's own. A default access list of POSIX belongs to a folder: what
is made in it is closed, and a folder made in it has the same list.
"""

from __future__ import annotations

import os
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
