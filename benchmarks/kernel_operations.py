"""The operations that kernels.py and the GPU checks measure, with our kernels, eager torch and
Liger.

Each entry of OPERATIONS makes a `Problem`: tensors that get gradients, functions of these tensors,
and the minimum bytes that forward and backward move. This file has element-wise operations;
layer_operations.py has the operations around large matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from tunesmith_kernels.gated_activation import gated
from tunesmith_kernels.rms_norm import NormKind, rms_norm
from tunesmith_kernels.rope import rope

from .kernel_problem import SHAPES, Problem, Shape, Tensors, leaf, liger_function
from .layer_operations import (
    attention_problem,
    log_prob_problem,
    lora_down_problem,
    lora_qkv_problem,
    qk_norm_problem,
)

__all__ = [
    "OPERATIONS",
    "SHAPES",
    "Problem",
    "Shape",
    "Tensors",
    "outputs_and_gradients",
    "upstream_of",
]


def rms_norm_problem(
    shape: Shape, device: torch.device, dtype: torch.dtype, kind: NormKind = NormKind.LLAMA
) -> Problem:
    """RMSNorm of x with a trained weight. The eager implementation is transformers' Llama module,
    or its Gemma module, which multiplies by 1 + weight."""
    x = leaf(shape.rows, shape.hidden, device=device, dtype=dtype)
    weight = leaf(shape.hidden, device=device, dtype=dtype)
    liger = liger_function("LigerRMSNormFunction")

    def eager(x: torch.Tensor, weight: torch.Tensor) -> Tensors:
        x_wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = x_wide * torch.rsqrt(x_wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        if kind is NormKind.GEMMA:
            return ((normed * (1.0 + weight.to(normed.dtype))).to(x.dtype),)
        return (weight * normed.to(x.dtype),)

    def of_liger(x: torch.Tensor, weight: torch.Tensor) -> Tensors:
        offset, in_place = (
            float(kind is NormKind.GEMMA),
            False,
        )  # backward must not overwrite the upstream gradient
        return (liger(x, weight, 1e-6, offset, kind.value, in_place),)

    return Problem(
        leaves=(x, weight),
        ours=lambda x, weight: (rms_norm(x, weight, 1e-6, kind),),
        eager=eager,
        liger=liger and of_liger,
        least_bytes=5 * x.nbytes,
    )


def rope_problem(shape: Shape, device: torch.device, dtype: torch.dtype) -> Problem:
    """RoPE of q and k. The eager implementation is transformers' RoPE function, with tables in the
    model's dtype."""
    q = leaf(shape.rows, shape.heads, shape.head_size, device=device, dtype=dtype)
    k = leaf(shape.rows, shape.kv_heads, shape.head_size, device=device, dtype=dtype)
    angle = torch.rand(shape.rows, shape.head_size // 2, device=device)
    cos, sin = angle.cos(), angle.sin()
    full_cos, full_sin = (torch.cat([t, t], 1)[:, None] for t in (cos, sin))
    liger = liger_function("LigerRopeFunction")

    def turned(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return x * full_cos.to(x.dtype) + torch.cat([-b, a], -1) * full_sin.to(x.dtype)

    def liger_rope(q: torch.Tensor, k: torch.Tensor) -> Tensors:
        tables = (t[None, :, 0].to(q.dtype) for t in (full_cos, full_sin))
        batch = (x.transpose(0, 1)[None].clone() for x in (q, k))  # Liger rotates in place
        return tuple(x[0].transpose(0, 1) for x in liger(*batch, *tables))

    return Problem(
        leaves=(q, k),
        ours=lambda q, k: rope(q, k, cos, sin),
        eager=lambda q, k: (turned(q), turned(k)),
        liger=liger and liger_rope,
        least_bytes=4 * (q.nbytes + k.nbytes),
    )


def swiglu_problem(shape: Shape, device: torch.device, dtype: torch.dtype) -> Problem:
    """SwiGLU. SwiGLU's input is one tensor that contains gate and up."""
    gate_up = leaf(shape.rows, 2 * shape.intermediate, device=device, dtype=dtype)
    liger = liger_function("LigerSiLUMulFunction")

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
    """GEGLU with the tanh approximation of GELU. GEGLU's input is one tensor that contains gate and
    up."""
    gate_up = leaf(shape.rows, 2 * shape.intermediate, device=device, dtype=dtype)
    liger = liger_function("LigerGELUMulFunction")

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
    "rms_norm_gemma": partial(rms_norm_problem, kind=NormKind.GEMMA),
    "rope": rope_problem,
    "swiglu": swiglu_problem,
    "geglu": geglu_problem,
    "qk_norm": qk_norm_problem,
    "attention": attention_problem,
    "lora_qkv": lora_qkv_problem,
    "lora_down": lora_down_problem,
    "log_prob": log_prob_problem,
}


def outputs_and_gradients(
    function: Callable[..., Tensors], leaves: Tensors, upstream: Tensors
) -> Tensors:
    """Run forward and backward of this operation. `upstream` has one gradient for each output."""
    outputs = function(*leaves)
    return (*outputs, *torch.autograd.grad(outputs, leaves, upstream))


def upstream_of(problem: Problem) -> Tensors:
    """Make a random gradient for each output."""
    return tuple(torch.randn_like(output) for output in problem.eager(*problem.leaves))
