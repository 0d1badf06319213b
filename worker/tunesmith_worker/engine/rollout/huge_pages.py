"""Linux's huge pages under memory that is read from end to end again and again.

A decode step reads every weight once. In pages of 4 KiB, finding them is a fifth of the step's
products (docs/contributing/log). No effect where the kernel (before 6.1) or the machine has none.
"""

from __future__ import annotations

import ctypes
import sys

_SIZE = 2 << 20
"""Of a page, bytes; on machines with others the kernel takes only what suits it."""
_LEAST = _SIZE // 8
"""Shorter memory is not worth a page."""
_MADV_COLLAPSE = 25
"""linux/mman.h: move what is there into huge pages, now."""


def use_huge_pages(address: int, size: int) -> None:
    """Of the pages that hold `size` bytes from `address`, whatever else is in them: its content and
    address stay. Advice: nothing is raised or returned."""
    if sys.platform != "linux" or size < _LEAST:
        return
    start = address // _SIZE * _SIZE
    end = -(-(address + size) // _SIZE) * _SIZE
    madvise = ctypes.CDLL(None).madvise
    madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_COLLAPSE)
