"""Linear layers of the decoder, optimized for the few rows of a decode step.

On a CPU, oneDNN stores a weight in the blocks that its kernels read: 1.2 to 1.9 times as fast as
torch.nn.functional.linear at 16 rows. torch has no public API for this; only this file uses the
private one, and falls back to plain linear layers without it.

A decode step reads every weight once. With pages of 4 KiB, address translation takes a fifth of the
time of the products (docs/contributing/log), so packed weights are moved into huge pages.
"""

from __future__ import annotations

import ctypes
import sys

import torch
from torch.nn.functional import linear

_HUGE_PAGE = 2 << 20
"""Bytes per huge page. With another page size the kernel moves only the pages that fit."""
_MIN_BYTES = _HUGE_PAGE // 8
"""Smaller memory is not worth a huge page."""
_MADV_COLLAPSE = 25
"""From linux/mman.h (Linux 6.1 or later): move memory into huge pages immediately."""


class Linear:
    """y = x W' + b, weight [out, in], x [N, in]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Keeps the tensors themselves, so later changes to them take effect."""
        self._weight, self._bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self._weight, self._bias)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return residual + y."""
        return residual + linear(x, self._weight, self._bias)


class SplitLinear(Linear):
    """Several linear layers with the same input; y is their outputs concatenated."""

    def __init__(self, parts: list[Linear]) -> None:
        self._parts = parts

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self._parts], -1)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return residual + self(x)


class PackedLinear(Linear):
    """Linear layer with a copy of the weight in oneDNN's blocks."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> None:
        """`rows`: the N that the blocks are optimized for; any other N works too."""
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
        use_huge_pages(torch.ops.mkldnn.data_ptr(packed), torch.ops.mkldnn._nbytes(packed))
        super().__init__(packed, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._weight, self._bias, "none", [], ""
        )
        return result

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            x, residual, self._weight, self._bias, "add"
        )
        return result


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Return True if PackedLinear supports weights of this dtype on this device."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> Linear:
    """Return a PackedLinear where supported, a plain Linear otherwise."""
    if can_pack(weight.dtype, weight.device):
        return PackedLinear(weight, bias, rows)
    return Linear(weight, bias)


def use_huge_pages(address: int, size: int) -> None:
    """Move the pages of `size` bytes at `address` into huge pages; contents and address are kept.
    A hint to the kernel: no effect where unsupported, and never an error."""
    if sys.platform != "linux" or size < _MIN_BYTES:
        return
    start = address // _HUGE_PAGE * _HUGE_PAGE
    end = -(-(address + size) // _HUGE_PAGE) * _HUGE_PAGE
    madvise = ctypes.CDLL(None).madvise
    madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_COLLAPSE)
