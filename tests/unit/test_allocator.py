"""Memory that is freed while a model is trained is kept for the next tensor, and given back afterwards."""

import json
import subprocess
import sys

SCRIPT = """
import ctypes, json, resource
from understudy.allocator import freed_memory_kept
from understudy.cores import resident_memory

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.memset.argtypes, library.free.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], [ctypes.c_void_p]
SIZE = 48 << 20

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        place = library.malloc(SIZE)
        library.memset(place, 1, SIZE)
        library.free(place)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

held = resident_memory()
before = faults()
with freed_memory_kept():
    faults()
    kept, inside = faults(), resident_memory()
print(json.dumps([before, kept, inside - held, resident_memory() - held]))
"""


def test_freed_memory_is_cleared_once_inside_and_given_back_at_the_end():
    found = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True, timeout=120)
    before, kept, inside, after = json.loads(found.stdout)
    assert before > 10 * 10_000
    assert kept < before / 20
    assert inside > 40 << 20
    assert after < 20 << 20
