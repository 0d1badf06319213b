"""Row tiles for the CPU paths, and block sizes for the Triton ones.

Element-wise work on a CPU is bound by page faults and caches: a tile's fp32 temporaries are
allocated once per call, stay in the cache and are written to by `out=`. Knows no operation.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

__all__ = ["block_shape", "num_warps", "row_tiles", "rows_per_tile", "wide"]

# Elements of one temporary. Measured (docs/contributing/log): smaller tiles cost more in calls than
# they gain in the cache; larger tiles cause page faults.
TILE_ELEMENTS = 1 << 18


def row_tiles(num_rows: int, row_elements: int) -> Iterator[slice]:
    """Slices that cover `num_rows` in order, each of at most TILE_ELEMENTS elements, or one row."""
    step = rows_per_tile(num_rows, row_elements)
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


def rows_per_tile(num_rows: int, row_elements: int) -> int:
    """The rows of the longest slice that `row_tiles` yields; at least 1."""
    return max(1, min(num_rows, TILE_ELEMENTS // max(1, row_elements)))


def wide(dtype: torch.dtype) -> torch.dtype:
    """What the arithmetic runs in: fp32, or float64 where that is the input's own type."""
    return torch.promote_types(dtype, torch.float32)


def block_shape(row_elements: int) -> tuple[int, int]:
    """Rows and columns of one Triton block: a whole row (a power of two), and several of them when
    they are short. Rows of more than 65,536 elements raise ValueError: they do not fit a block."""
    if row_elements > 65_536:
        raise ValueError(f"rows may have at most 65536 elements, got {row_elements}")
    columns = 1 << max(0, row_elements - 1).bit_length()
    return max(1, 1024 // columns), columns


def num_warps(block_elements: int) -> int:
    """About 16 elements a thread: enough bytes in flight, and no spilled registers."""
    return min(32, max(4, block_elements // 512))
