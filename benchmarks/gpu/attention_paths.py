"""Measure the time of our attention and of torch's attention backends on a GPU.

Each call is the forward and backward pass of one row of 4,096 tokens in bf16. `ours` is
segment_attention on one tensor that contains q, k and v; its time includes RoPE. All entries except
`ours` are backends of torch's scaled_dot_product_attention. The backends receive q and k after
RoPE, in torch's layout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tunesmith_kernels.attention import segment_attention, why_tiles
from tunesmith_kernels.segments import AttentionShape, Segments

from ..kernel_operations import Shape
from .timing import median_seconds

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def attention_paths(shape: Shape, device: torch.device) -> dict[str, Any]:  # Any: JSON
    """Time all backends. A call has `(4 + 10) * T^2 / 2 * heads * head_size` floating-point
    operations; T is the number of tokens. The factor 4 belongs to the forward pass, and the factor
    10 to the backward pass."""
    tokens = 4096 if device.type == "cuda" else 40
    of = AttentionShape(shape.heads, shape.kv_heads, shape.head_size, shape.head_size**-0.5)
    ours, qkv = _ours(tokens, of, device)
    runs = {"ours": ours}
    refused: dict[str, str] = {}
    for name, backend in BACKENDS.items() if device.type == "cuda" else ():
        run = _sdpa(backend, tokens, of, device)
        try:
            run()
        except RuntimeError as reason:
            refused[name] = str(reason).splitlines()[0]
        else:
            runs[name] = run
    seconds = median_seconds(runs, device, 20 if device.type == "cuda" else 1)
    count = (4 + 10) * tokens**2 / 2 * of.heads * of.head_dim
    return {
        "tokens": tokens,
        "ours_is": why_tiles(qkv, of) or "torch's varlen kernels",
        "ms": {name: round(elapsed * 1e3, 4) for name, elapsed in seconds.items()},
        "tflop_per_s": {n: round(count / elapsed / 1e12, 2) for n, elapsed in seconds.items()},
        "refused": refused,
    }


def _ours(
    tokens: int, of: AttentionShape, device: torch.device
) -> tuple[Callable[[], object], torch.Tensor]:
    segments = Segments.from_lengths([tokens], device)
    angles = torch.rand(tokens, of.head_dim // 2, device=device)
    qkv = torch.randn(tokens, of.width, device=device, dtype=torch.bfloat16)
    upstream = torch.randn(tokens, of.heads * of.head_dim, device=device, dtype=torch.bfloat16)

    def run() -> object:
        # RoPE overwrites qkv, so each call rotates qkv again. The values do not affect the time.
        leaf = qkv.detach().requires_grad_()
        out = segment_attention(leaf.view_as(leaf), angles.cos(), angles.sin(), segments, of)
        return torch.autograd.grad(out, leaf, upstream)

    return run, qkv


def _sdpa(
    backend: SDPBackend, tokens: int, of: AttentionShape, device: torch.device
) -> Callable[[], object]:
    sizes = ((n, tokens, of.head_dim) for n in (of.heads, of.kv_heads, of.kv_heads))
    q, k, v = (
        torch.randn(1, *size, device=device, dtype=torch.bfloat16).requires_grad_()
        for size in sizes
    )
    upstream = torch.randn_like(q)

    def run() -> object:
        with sdpa_kernel([backend]):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return torch.autograd.grad(out, (q, k, v), upstream)

    return run
