"""Which of many byte strings lie in a long one: all are looked for in one pass, and likely places are compared."""

from collections import defaultdict
from collections.abc import Collection

import numpy as np

_BEGINNING = 8  # bytes; a shorter one is looked for alone
_BITS = 20  # of the table of beginnings


def found_in(content: bytes, needles: Collection[bytes]) -> list[bytes]:
    """Those of `needles` that `content` holds, in their order."""
    by_beginning: dict[bytes, list[bytes]] = defaultdict(list)
    for needle in needles:
        by_beginning[needle[:_BEGINNING]].append(needle)
    known = np.zeros(1 << _BITS, dtype=bool)
    known[_slots(np.frombuffer(b"".join(key for key in by_beginning if len(key) == _BEGINNING), "<u8"))] = True
    found = {needle for needle in needles if len(needle) < _BEGINNING and needle in content}
    for shift in range(_BEGINNING):
        whole = (len(content) - shift) // _BEGINNING
        if whole <= 0:
            continue
        windows = np.frombuffer(content, "<u8", count=whole, offset=shift)
        for at in (shift + _BEGINNING * np.flatnonzero(known[_slots(windows)])).tolist():
            beginning = content[at : at + _BEGINNING]
            found.update(one for one in by_beginning.get(beginning, ()) if content.startswith(one, at))
    return [needle for needle in needles if needle in found]


def _slots(windows: np.ndarray) -> np.ndarray:
    """Where each eight bytes lie in the table."""
    return (windows * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - _BITS)
