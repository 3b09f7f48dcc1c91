"""The C library's allocator on a CPU: memory that is freed is kept for the next tensor while a model is trained."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Of glibc's malloc.h. From the first size on, what is free at the end of the heap goes back to the system.
# From the second on, memory comes from the system by itself, and goes back to it.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
# What large tensors that are freed raise the second size to; the first one is then twice as large.
_LARGEST_MMAP_THRESHOLD: Final = 32 << 20
_NEVER: Final = (1 << 31) - 1


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep what is freed inside; the system would clear each page before it gives it out again.

    At the end everything that is free goes back, and the allocator is left as large tensors leave it by themselves.
    Without glibc nothing is done.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        yield
        return
    library.mallopt(_MMAP_THRESHOLD, _NEVER)
    library.mallopt(_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        library.mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        library.mallopt(_TRIM_THRESHOLD, 2 * _LARGEST_MMAP_THRESHOLD)
        library.malloc_trim(0)
