"""The table of operations that kernels.py times and gpu.py checks: ours, eager torch, Liger's.

A row of OPERATIONS makes a `Problem`: tensors that get gradients, functions of them, and the bytes
that forward and backward must move at least. Knows nothing of clocks or tolerances.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from tunesmith_kernels.gated_activation import gated
from tunesmith_kernels.rms_norm import rms_norm
from tunesmith_kernels.rope import rope

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One decoder layer and the rows that pass through it."""

    rows: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int


SHAPES = {
    "tiny": Shape(rows=5, hidden=48, heads=2, kv_heads=1, head_size=24, intermediate=100),
    "llama-12m": Shape(rows=2048, hidden=384, heads=8, kv_heads=2, head_size=48, intermediate=1024),
    "llama-1b": Shape(
        rows=2048, hidden=2048, heads=32, kv_heads=8, head_size=64, intermediate=8192
    ),
    "qwen-1.5b": Shape(
        rows=8192, hidden=1536, heads=12, kv_heads=2, head_size=128, intermediate=8960
    ),
    "llama-8b": Shape(
        rows=8192, hidden=4096, heads=32, kv_heads=8, head_size=128, intermediate=14_336
    ),
}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """`ours` and `eager` map the leaves to outputs of one meaning, without changing them."""

    leaves: Tensors
    ours: Callable[..., Tensors]
    eager: Callable[..., Tensors]
    least_bytes: int
    """Of one forward and one backward: every input read and every result written once."""
    liger: Callable[..., Tensors] | None = None


def _leaf(*shape: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, device=device).to(dtype).requires_grad_()


def _liger(name: str) -> Any:  # Liger has no types
    """A function of liger_kernel.ops, which runs on a GPU only; None where it is not installed."""
    if not torch.cuda.is_available() or importlib.util.find_spec("liger_kernel") is None:
        return None
    from liger_kernel import ops  # type: ignore[import-not-found, unused-ignore]  # optional

    return getattr(ops, name).apply


def rms_norm_problem(shape: Shape, device: torch.device, dtype: torch.dtype) -> Problem:
    """x and the trained weight; eager is transformers' module."""
    x = _leaf(shape.rows, shape.hidden, device=device, dtype=dtype)
    weight = _leaf(shape.hidden, device=device, dtype=dtype)
    liger = _liger("LigerRMSNormFunction")

    def eager(x: torch.Tensor, weight: torch.Tensor) -> Tensors:
        x_wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = x_wide * torch.rsqrt(x_wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (weight * normed.to(x.dtype),)

    return Problem(
        leaves=(x, weight),
        ours=lambda x, weight: (rms_norm(x, weight, 1e-6),),
        eager=eager,
        liger=liger and (lambda x, weight: (liger(x, weight, 1e-6),)),
        least_bytes=5 * x.nbytes,
    )


def rope_problem(shape: Shape, device: torch.device, dtype: torch.dtype) -> Problem:
    """q and k; eager is transformers' function, its tables in the model's dtype."""
    q = _leaf(shape.rows, shape.heads, shape.head_size, device=device, dtype=dtype)
    k = _leaf(shape.rows, shape.kv_heads, shape.head_size, device=device, dtype=dtype)
    angle = torch.rand(shape.rows, shape.head_size // 2, device=device)
    cos, sin = angle.cos(), angle.sin()
    full_cos, full_sin = (torch.cat([t, t], 1)[:, None] for t in (cos, sin))
    liger = _liger("LigerRopeFunction")

    def turned(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return x * full_cos.to(x.dtype) + torch.cat([-b, a], -1) * full_sin.to(x.dtype)

    def liger_rope(q: torch.Tensor, k: torch.Tensor) -> Tensors:
        tables = (t[None, :, 0].to(q.dtype) for t in (full_cos, full_sin))
        batch = (x.transpose(0, 1)[None].clone() for x in (q, k))  # it rotates in place
        return tuple(x[0].transpose(0, 1) for x in liger(*batch, *tables))

    return Problem(
        leaves=(q, k),
        ours=lambda q, k: rope(q, k, cos, sin),
        eager=lambda q, k: (turned(q), turned(k)),
        liger=liger and liger_rope,
        least_bytes=4 * (q.nbytes + k.nbytes),
    )


def swiglu_problem(shape: Shape, device: torch.device, dtype: torch.dtype) -> Problem:
    """gate and up side by side, as one GEMM leaves them."""
    gate_up = _leaf(shape.rows, 2 * shape.intermediate, device=device, dtype=dtype)
    liger = _liger("LigerSiLUMulFunction")

    def eager(gate_up: torch.Tensor) -> Tensors:
        gate, up = gate_up.chunk(2, -1)
        return (F.silu(gate) * up,)

    return Problem(
        leaves=(gate_up,),
        ours=lambda gate_up: (gated(gate_up, "silu"),),
        eager=eager,
        liger=liger and (lambda gate_up: (liger(*gate_up.chunk(2, -1)),)),
        least_bytes=4 * gate_up.nbytes,
    )


def geglu_problem(shape: Shape, device: torch.device, dtype: torch.dtype) -> Problem:
    """As swiglu, with the tanh approximation of GELU."""
    gate_up = _leaf(shape.rows, 2 * shape.intermediate, device=device, dtype=dtype)
    liger = _liger("LigerGELUMulFunction")

    def eager(gate_up: torch.Tensor) -> Tensors:
        gate, up = gate_up.chunk(2, -1)
        return (F.gelu(gate, approximate="tanh") * up,)

    return Problem(
        leaves=(gate_up,),
        ours=lambda gate_up: (gated(gate_up, "gelu_tanh"),),
        eager=eager,
        liger=liger and (lambda gate_up: (liger(*gate_up.chunk(2, -1)),)),
        least_bytes=4 * gate_up.nbytes,
    )


OPERATIONS: dict[str, Callable[[Shape, torch.device, torch.dtype], Problem]] = {
    "rms_norm": rms_norm_problem,
    "rope": rope_problem,
    "swiglu": swiglu_problem,
    "geglu": geglu_problem,
}


def outputs_and_gradients(
    function: Callable[..., Tensors], leaves: Tensors, upstream: Tensors
) -> Tensors:
    """Forward and backward; upstream holds a gradient for each output."""
    outputs = function(*leaves)
    return (*outputs, *torch.autograd.grad(outputs, leaves, upstream))


def upstream_of(problem: Problem) -> Tensors:
    """A random gradient for each output."""
    return tuple(torch.randn_like(output) for output in problem.eager(*problem.leaves))
