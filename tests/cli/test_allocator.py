"""The setting of malloc keeps large blocks in the heap, and leaves a choice of the user alone."""

import os
import subprocess
import sys

import pytest

# Prints whether the thresholds were set, and whether a block of 4 MiB, aligned as the data of tensors are, was taken by mmap.
PROGRAM = """
import ctypes
from longscan._allocator import keep_freed_memory

class Counts(ctypes.Structure):  # struct mallinfo2 of malloc.h
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Counts
changed = keep_freed_memory()
before = libc.mallinfo2().hblkhd
block = ctypes.c_void_p()
assert libc.posix_memalign(ctypes.byref(block), ctypes.c_size_t(64), ctypes.c_size_t(2**22)) == 0
print(changed, libc.mallinfo2().hblkhd - before >= 2**22)
"""


def _has_mallinfo2() -> bool:
    if sys.platform != "linux":
        return False
    import ctypes

    return hasattr(ctypes.CDLL(None), "mallinfo2")


@pytest.mark.skipif(not _has_mallinfo2(), reason="needs glibc 2.33 or newer")
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "True False"),
        ({"MALLOC_MMAP_MAX_": "65536"}, "False True"),
        ({"MALLOC_TRIM_THRESHOLD_": "65536"}, "False True"),
    ],
)
def test_blocks_stay_in_the_heap_unless_the_environment_decides(variables: dict[str, str], expected: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PROGRAM]
    result = subprocess.run(command, env=inherited | variables, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == expected
