"""Linear layers of the decoder, optimized for decode steps with few rows.

On a CPU, oneDNN can store a weight in the block layout of its kernels. A weight in this layout is
called packed. With 16 rows, a linear layer with a packed weight is 1.2 to 1.9 times as fast as
torch.nn.functional.linear. torch packs weights only through a private API. In a torch version
without this API, the decoder uses plain linear layers.

Packed weights are moved into huge pages. With normal pages of 4 KiB, address translation takes a
fifth of the matrix products' time, because a decode step reads all weights and therefore very many
pages (docs/contributing/log).
"""

from __future__ import annotations

import ctypes
import sys

import torch
from torch.nn.functional import linear

_HUGE_PAGE = 2 << 20
"""Assumed size of a huge page, in bytes. On a host with another size, Linux moves only whole huge
pages."""
_MIN_BYTES = _HUGE_PAGE // 8
"""Minimum size of a weight for huge pages, in bytes."""
_MADV_COLLAPSE = 25
"""madvise option that moves memory into huge pages immediately (linux/mman.h, Linux 6.1 or
later)."""


class Linear:
    """Linear layer `y = x W' + b` with weight [out, in] and input x [N, in]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """The layer does not copy the tensors, so later changes of the tensors take effect."""
        self._weight, self._bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self._weight, self._bias)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return `residual + y`."""
        return residual + linear(x, self._weight, self._bias)


class SplitLinear(Linear):
    """Several linear layers with the same input and concatenated outputs."""

    def __init__(self, parts: list[Linear]) -> None:
        self._parts = parts

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self._parts], -1)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return residual + self(x)


class PackedLinear(Linear):
    """Linear layer with a copy of the weight in oneDNN's block layout."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> None:
        """`rows`: usual number of rows of the input; the layout is fastest for this number."""
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
    """Return a PackedLinear if the dtype and device support it, otherwise a plain Linear."""
    if can_pack(weight.dtype, weight.device):
        return PackedLinear(weight, bias, rows)
    return Linear(weight, bias)


def use_huge_pages(address: int, size: int) -> None:
    """Move `size` bytes of memory at `address` into huge pages.

    The contents and the address of the memory do not change. If huge pages are not supported, the
    call has no effect and raises no error."""
    if sys.platform != "linux" or size < _MIN_BYTES:
        return
    start = address // _HUGE_PAGE * _HUGE_PAGE
    end = -(-(address + size) // _HUGE_PAGE) * _HUGE_PAGE
    madvise = ctypes.CDLL(None).madvise
    madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_COLLAPSE)
