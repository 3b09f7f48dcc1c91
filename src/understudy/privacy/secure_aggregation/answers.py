"""What a client of secure aggregation sent in a session, on its disk before it is sent: it never sends two versions.

A client that forgot what it answered would answer again with the same masks: to a second set of partners, whose masks
then come off by subtraction, or to a second request, which together with the first reveals both shares of someone.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from understudy.durable import naming, sync
from understudy.errors import UnderstudyError

Sent = Literal["vector", "keys", "shares", "masked", "unmask"]

_WORDS: Final = {
    "vector": "another vector: its masks are those of the first one",
    "keys": "other keys",
    "shares": "shares for other neighbours or other keys",
    "masked": "a masked vector for other partners: the difference would unmask it",
    "unmask": "a second, different request: both shares of one client would unmask it",
}
_TAG_BYTES: Final = 32


@dataclass(frozen=True)
class Answers:
    """The record of one client in one session.

    Attributes:
        folder: of this client, private to it, on a disk that lasts; made when it is needed.
        session: of the round.
        index: the client's number.
        secret: the client's own; what was asked and the vector are kept as HMACs under it.
    """

    folder: Path
    session: bytes
    index: int
    secret: bytes = field(repr=False)

    def once(self, kind: Sent, asked: Iterable[bytes], answer: bytes) -> bytes:
        """`answer`, once it is on the disk; what was answered before, if the same was asked before.

        Args:
            kind: what is sent.
            asked: everything that the answer depends on beside the client's secret, in parts.
            answer: what would be sent.

        Raises:
            UnderstudyError: when something else was asked before, here or in another process, or the record cannot be
                read or written.
        """
        framed = b"".join(len(part).to_bytes(8) + part for part in asked)
        tag = hmac.digest(self.secret, b"understudy/secure/answers/1/" + kind.encode() + framed, "sha256")
        path = self.folder / f"{self.session.hex()}-{self.index}.{kind}"
        try:
            found = _read(path) or _write_first(path, tag + answer)
        except OSError as error:
            raise UnderstudyError(
                f"client {self.index}: what it sends cannot be recorded in {self.folder} ({error.strerror}), so "
                "nothing is sent; fix it and run again"
            ) from None
        if not hmac.compare_digest(found[:_TAG_BYTES], tag):
            raise UnderstudyError(
                f"client {self.index} answered in this session before and is asked for {_WORDS[kind]}; refused. "
                "Give a new try at the round a new attempt"
            )
        return found[_TAG_BYTES:]


def _read(path: Path) -> bytes | None:
    """A record, which is there whole or not at all."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _write_first(path: Path, content: bytes) -> bytes:
    """Write a record to the disk, unless another process was first; gives the one that is there."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with naming(path), os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # A hard link appears with its whole content, and fails if another process was first.
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
    sync(path.parent)
    return path.read_bytes()
