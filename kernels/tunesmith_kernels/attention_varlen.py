"""Attention over rows of unequal length with torch's FlashAttention.

torch 2.10 added `torch.nn.attention.varlen`, and later versions changed its arguments. On GPUs of
compute capability 9.0, FlashAttention 3 is used if its package is installed, because FlashAttention
3 is faster on these GPUs than torch's built-in FlashAttention 2. The caller applies RoPE to queries
and keys.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .segments import AttentionShape, Segments
from .tiles import wide

__all__ = ["varlen_attention", "why_not_varlen", "why_not_varlen_here"]

_FA3 = "flash_attn_interface"
"""Name of the module that torch imports for FlashAttention 3."""


def why_not_varlen(dtype: torch.dtype, shape: AttentionShape) -> str | None:
    """Return the reason why the varlen kernels do not support this dtype or shape; None if they
    do."""
    if shape.softcap is not None:
        return f"a soft cap on scores ({shape.softcap:g})"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"{str(dtype).removeprefix('torch.')}, not half precision"
    if shape.head_dim % 8 or shape.head_dim > 256:
        return f"head_dim {shape.head_dim} (supported: multiples of 8 up to 256)"
    return None


@cache
def why_not_varlen_here(device: torch.device) -> str | None:
    """Return the reason why the varlen kernels cannot run on this device; None if they can."""
    if device.type != "cuda":
        return f"device {device.type}"
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return f"compute capability {capability[0]}.{capability[1]}, FlashAttention requires 8.0"
    if not torch.backends.cuda.is_flash_attention_available():
        return "torch was built without FlashAttention"
    return None


def varlen_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: Segments, shape: AttentionShape
) -> torch.Tensor:
    """Return the result of attention, [T, heads, D].

    The shapes are: q [T, heads, D], k and v [T, kv_heads, D]. All tensors are on a GPU in half
    precision."""
    attention, has_gqa_option = _entry(torch.cuda.get_device_capability(q.device))
    cumulative, longest = segments.cumulative, segments.longest
    cumulative_k, longest_k = cumulative, longest
    if segments.prefixes is not None:
        # The kernels align a row's last key with its last query, also if there are more
        # keys than queries.
        k, v = (_gathered(x, segments.prefixes.keys) for x in (k, v))
        cumulative_k, longest_k = segments.prefixes.cumulative, segments.prefixes.longest
    left = -1 if shape.window is None else shape.window - 1
    options = {"enable_gqa": shape.heads != shape.kv_heads} if has_gqa_option else {}
    out: torch.Tensor = attention(
        *(q, k, v, cumulative, cumulative_k, longest, longest_k),
        scale=shape.scale,
        window_size=(left, 0),
        **options,
    )
    return out


def _gathered(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _Gathered.apply(x, index)  # type: ignore[no-untyped-call]  # untyped in torch
    return result


class _Gathered(torch.autograd.Function):
    """x[index]; the backward pass adds the gradients in fp32, or in float64 for float64 inputs.

    If several completions use the keys of one prompt, the gradient of a key is the sum of several
    gradients.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return x.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor, None]:
        (index,) = ctx.saved_tensors
        dtype = wide(upstream.dtype)
        total = upstream.new_zeros(ctx.shape, dtype=dtype).index_add_(0, index, upstream.to(dtype))
        return total.to(upstream.dtype), None


@cache
def _entry(capability: tuple[int, int]) -> tuple[Callable[..., Any], bool]:
    """Return torch's attention function, and True if the function has the argument `enable_gqa`.

    For grouped heads, torch 2.13 requires `enable_gqa`. In torch 2.11, the argument `enable_gqa`
    does not exist and is not needed."""
    from torch.nn.attention.varlen import varlen_attn  # slow to import

    if capability[0] == 9 and find_spec(_FA3) is not None:
        _activate_fa3()
    return varlen_attn, "enable_gqa" in inspect.signature(varlen_attn).parameters


def _activate_fa3() -> None:
    """Switch the whole process to FlashAttention 3, including torch's own attention."""
    from torch.nn.attention import activate_flash_attention_impl

    try:
        activate_flash_attention_impl("FA3")
    except (ImportError, RuntimeError) as reason:  # built for another torch or CUDA version
        warnings.warn(f"cannot load FlashAttention 3; using version 2: {reason}", stacklevel=2)
