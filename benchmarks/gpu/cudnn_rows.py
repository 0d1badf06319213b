"""cuDNN's attention compared with ours, on rows of unequal length with grouped key heads.

Torch includes cuDNN's attention, but torch's varlen function does not use cuDNN. On compute
capability 9.0, cuDNN's attention may be faster than FlashAttention 2. This case calls the cuDNN
operator and compares values, gradients and time. The comparison is a separate case because the
cuDNN call may crash the process.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tunesmith_kernels.attention_varlen import varlen_attention, why_not_varlen_here
from tunesmith_kernels.segments import AttentionShape, Segments

from ..kernel_operations import Shape
from .timing import median_seconds

LENGTHS = [1500, 1, 1024, 700, 871]


def cudnn_rows(shape: Shape, device: torch.device) -> dict[str, Any]:  # Any: JSON
    """Compare cuDNN's attention with ours. `errors` are the relative RMS differences of the output
    and of the gradients of q, k and v."""
    reason = why_not_varlen_here(device)
    if reason is not None:
        return {"refused": reason}
    of = AttentionShape(shape.heads, shape.kv_heads, shape.head_size, shape.head_size**-0.5)
    segments = Segments.from_lengths(LENGTHS, device)
    leaves = [
        torch.randn(
            segments.tokens, heads, of.head_dim, device=device, dtype=torch.bfloat16
        ).requires_grad_()
        for heads in (of.heads, of.kv_heads, of.kv_heads)
    ]
    upstream = torch.randn_like(leaves[0])
    ours = partial(_forward_and_backward, varlen_attention, leaves, upstream, segments, of)
    cudnn = partial(_forward_and_backward, _cudnn, leaves, upstream, segments, of)
    try:
        theirs = cudnn()
        torch.cuda.synchronize()
    except RuntimeError as refusal:
        return {"refused": str(refusal).splitlines()[0]}
    errors = [
        float((a.float() - b.float()).norm() / b.float().norm())
        for a, b in zip(theirs, ours(), strict=True)
    ]
    seconds = median_seconds({"ours": ours, "cudnn": cudnn}, device, repeats=20)
    return {
        "lengths": LENGTHS,
        "errors": errors,
        "ms": {name: round(elapsed * 1e3, 4) for name, elapsed in seconds.items()},
    }


def _cudnn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: Segments, of: AttentionShape
) -> torch.Tensor:
    rows, longest = segments.cumulative, segments.longest
    out: torch.Tensor = torch.ops.aten._cudnn_attention_forward(
        *(q, k, v, None, rows, rows, longest, longest),
        compute_log_sumexp=True,
        is_causal=True,
        scale=of.scale,
    )[0]
    return out


def _forward_and_backward(
    attention: Any,  # varlen_attention or _cudnn
    leaves: list[torch.Tensor],
    upstream: torch.Tensor,
    segments: Segments,
    of: AttentionShape,
) -> tuple[torch.Tensor, ...]:
    out = attention(*leaves, segments, of)
    return (out, *torch.autograd.grad(out, leaves, upstream))
