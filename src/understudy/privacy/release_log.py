"""What a charge has released once, kept as long as the charge lasts: the same query gets it back, no other is noised.

A log is a folder of one machine. What was asked first is also noted where the charge is known, so that a machine
without the folder draws nothing for another query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from understudy.errors import UnderstudyError
from understudy.privacy.mechanism_call import Mechanism
from understudy.tensor_files import load_tensors, write_tensors_once

# (name of a call, tag of its query) -> the tag of the query that the call was first made with
Note = Callable[[str, bytes], bytes]

# Name of the tensor of a log's file that tells which query it answered.
_TAG = "release log.tag"


@dataclass(frozen=True)
class ReleaseLog:
    """The log of one charge.

    Attributes:
        folder: under the private root, one per charge.
        charge_id: of the charge.
        note: see `Mechanisms.live`.
    """

    folder: Path = field(repr=False)
    charge_id: str
    note: Note | None = field(default=None, repr=False)

    def once(
        self, call: Mechanism, draw: Callable[[], dict[str, Tensor]], *, tag: bytes, answers_later: bool
    ) -> dict[str, Tensor]:
        """The released value, drawn and written first where it is not there yet.

        Args:
            call: which release.
            draw: makes it.
            tag: tells the query from others without saying anything about it.
            answers_later: whether the first release answers every later query, whatever it is about.

        Raises:
            UnderstudyError: another query was released under this call.
        """
        name = f"{call.kind}.{call.step}.{call.purpose.replace('/', '+')}"
        path = self.folder / f"{name}.safetensors"
        if not path.exists():
            # Another machine may have asked another query, and has the release log.
            if self.note is not None and self.note(name, tag) != tag:
                raise self._released_before(call)
            tagged = {} if answers_later else {_TAG: torch.tensor(list(tag), dtype=torch.uint8, device="cpu")}
            write_tensors_once(path, draw() | tagged)
        kept = load_tensors(path)
        found = kept.pop(_TAG, None)
        if not answers_later and (found is None or bytes(found.tolist()) != tag):
            raise self._released_before(call)
        return kept

    def _released_before(self, call: Mechanism) -> UnderstudyError:
        return UnderstudyError(
            f"charge {self.charge_id} has released {call.kind} step={call.step}, purpose={call.purpose!r} "
            "for other inputs, so noise for those of now would be a second release that nobody paid for. What led "
            "to them has changed: another version, a lost cache, or an endpoint that does not repeat itself. "
            "Restore it, or start a new run, charged anew, with another --set public_seed=..."
        )
