"""Row tiles of the CPU paths, and block sizes of the Triton kernels.

On a CPU, element-wise operations are slow if their temporary tensors do not fit in the cache. The
fp32 temporary tensors of a tile fit in the cache. The temporary tensors are allocated once per call
and reused for each tile.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

__all__ = ["block_shape", "num_warps", "row_tiles", "rows_per_tile", "wide"]

# Number of elements of one temporary. Measured (docs/contributing/log): smaller tiles need more
# calls, which cost more than the cache saves; larger tiles cause page faults.
TILE_ELEMENTS = 1 << 18


def row_tiles(num_rows: int, row_elements: int) -> Iterator[slice]:
    """Yield slices of rows, in order. Each slice has at least one row. A slice with several rows
    has at most TILE_ELEMENTS elements."""
    step = rows_per_tile(num_rows, row_elements)
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


def rows_per_tile(num_rows: int, row_elements: int) -> int:
    """Return the number of rows in the longest slice of `row_tiles`, at least 1."""
    return max(1, min(num_rows, TILE_ELEMENTS // max(1, row_elements)))


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of computations: float64 for float64 tensors, otherwise fp32."""
    return torch.promote_types(dtype, torch.float32)


def block_shape(row_elements: int) -> tuple[int, int]:
    """Return the number of rows and columns of a Triton block.

    A block contains whole rows, padded to a power of two; short rows share a block. Raises
    ValueError for rows of more than 65,536 elements."""
    if row_elements > 65_536:
        raise ValueError(f"rows may have at most 65536 elements, got {row_elements}")
    columns = 1 << max(0, row_elements - 1).bit_length()
    return max(1, 1024 // columns), columns


def num_warps(block_elements: int) -> int:
    """Return the number of warps that gives each thread about 16 elements.

    With fewer elements per thread, loads are slower; with more, a thread needs too many
    registers."""
    return min(32, max(4, block_elements // 512))
