"""Products with the decoder's weights, for the few rows of a decode step.

On a CPU oneDNN keeps a weight in the blocks that its kernels read: at 16 rows 1.2 to 1.9 times as
fast as torch.nn.functional.linear. torch has no public name for that; this file alone uses the
private one, and everything works without it.
"""

from __future__ import annotations

import ctypes
import sys

import torch
from torch.nn.functional import linear

_HUGE_PAGE = 2 << 20
"""Of a page, bytes; on machines with others the kernel takes only what suits it."""
_MIN_BYTES = _HUGE_PAGE // 8
"""Shorter memory is not worth a page."""
_MADV_COLLAPSE = 25
"""linux/mman.h: move what is there into huge pages, now."""


class Linear:
    """y = x W' + b, weight [out, in], x [N, in]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Keeps the tensors as they are, so changes to them are seen."""
        self._weight, self._bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self._weight, self._bias)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual + y"""
        return residual + linear(x, self._weight, self._bias)


class SplitLinear(Linear):
    """Several weights that read the same input: y is their outputs side by side."""

    def __init__(self, parts: list[Linear]) -> None:
        self._parts = parts

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self._parts], -1)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return residual + self(x)


class PackedLinear(Linear):
    """Holds a copy of the weight, in oneDNN's blocks."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> None:
        """`rows`: N that the blocks are chosen for; any other one works too."""
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
    """Whether PackedLinear works for such weights here."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> Linear:
    """A linear layer on a copy of ours; packed where that can be."""
    if can_pack(weight.dtype, weight.device):
        return PackedLinear(weight, bias, rows)
    return Linear(weight, bias)


def use_huge_pages(address: int, size: int) -> None:
    """Of the pages that hold `size` bytes from `address`, whatever else is in them: its content and
    address stay. Advice: nothing is raised or returned."""
    if sys.platform != "linux" or size < _MIN_BYTES:
        return
    start = address // _HUGE_PAGE * _HUGE_PAGE
    end = -(-(address + size) // _HUGE_PAGE) * _HUGE_PAGE
    madvise = ctypes.CDLL(None).madvise
    madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_COLLAPSE)
