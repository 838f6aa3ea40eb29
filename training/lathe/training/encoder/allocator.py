"""Settings of the C memory allocator."""

import ctypes
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MMAP_FROM_BYTES = 32 * 2**20
"""Bytes from which glibc allocates a block by mmap, 32 MiB, the most it allows; smaller ones come from the heap."""

MAX_FREE_BYTES = 512 * 2**20
"""Free bytes at the end of the heap that glibc keeps instead of returning them to the system, 512 MiB."""


def keep_freed_blocks() -> None:
    """Set glibc's malloc, for the whole process, to reuse large freed blocks instead of returning each to the system.
    On a system without glibc, nothing happens.

    A new block costs a page fault every 4 kB: a body of 6 MB took twice as long, long batches of an encoder a tenth to
    a quarter longer.
    """
    with suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, MMAP_FROM_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, MAX_FREE_BYTES)
