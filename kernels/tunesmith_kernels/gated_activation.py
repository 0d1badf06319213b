"""Gated activations of MLPs (SwiGLU, GEGLU), and their gradients. The formulas are:

    out = act(gate) up,    gate_up = [gate | up]

    d_up = d_out act(gate)         d_gate = d_out up act'(gate)

    silu        act(g) = g sigmoid(g)
    gelu        act(g) = g Phi(g),                    Phi the normal distribution function
    gelu_tanh   act(g) = g sigmoid(2 z),              z = sqrt(2/pi) (g + 0.044715 g^3)

The term sigmoid(2 z) equals (1 + tanh z) / 2. The formulas are from Shazeer, "GLU Variants Improve
Transformer", https://arxiv.org/abs/2002.05202. For silu and gelu, the CPU path and stock
transformers round act(gate) to the tensor's dtype before the multiplication. The Triton path and
the reference round only the result. `gated` is differentiable. `gated_forward` and `gated_backward`
are used by other autograd functions. In shapes, T is the number of rows, and I is the MLP's
intermediate size.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from .dispatch import uses_triton
from .tiles import row_tiles, rows_per_tile, wide

__all__ = ["Activation", "gated", "gated_backward", "gated_forward", "gated_reference"]

Activation = Literal["silu", "gelu", "gelu_tanh"]
"""`silu`: SwiGLU. `gelu`: GEGLU with the error function. `gelu_tanh`: GEGLU with the tanh
approximation (transformers' "gelu_pytorch_tanh")."""


def gated_reference(gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Compute the gated activation [T, I] of gate_up [T, 2I]. The result is rounded once."""
    gate, up = gate_up.to(wide(gate_up.dtype)).chunk(2, -1)
    if activation == "silu":
        activated = F.silu(gate)
    else:
        activated = F.gelu(gate, approximate="none" if activation == "gelu" else "tanh")
    return (activated * up).to(gate_up.dtype)


def gated(gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Compute the gated activation [T, I] of gate_up [T, 2I].

    The result is differentiable once. Only gate_up is saved for the backward pass.

    Raises ValueError for a wrong shape or an activation that is not in `Activation`.
    """
    _check(gate_up, activation)
    out: torch.Tensor = _Gated.apply(  # type: ignore[no-untyped-call]  # untyped in torch
        gate_up, activation
    )
    return out


def gated_forward(gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Compute the gated activation [T, I] of gate_up [T, 2I].

    In memory, there may be gaps between the rows of gate_up."""
    _check(gate_up, activation)
    gate_up = _last_contiguous(gate_up)
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(num_rows, size, dtype=gate_up.dtype, device=gate_up.device)
    if uses_triton(gate_up):
        from .gated_activation_triton import launch_forward

        launch_forward(gate_up, out, activation)
    else:
        _forward_cpu(gate_up, out, activation)
    return out


def gated_backward(
    gate_up: torch.Tensor, d_out: torch.Tensor, activation: Activation, *, in_place: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result `out` [T, I] of the forward pass, and the gradient of `gate_up` [T, 2I].

    `d_out`: gradient of `out`, [T, I].

    If `in_place` is True, `out` overwrites `d_out`. With `in_place`, ValueError is raised if the
    last dimension of `d_out` is not contiguous. `gate_up` stays unchanged, so a second backward
    pass is possible.
    """
    _check(gate_up, activation)
    if d_out.shape != (gate_up.shape[0], gate_up.shape[1] // 2) or d_out.dtype != gate_up.dtype:
        raise ValueError(
            f"d_out must be [T, I] for gate_up [T, 2I], of the same dtype; got {list(d_out.shape)} "
            f"{d_out.dtype} and {list(gate_up.shape)} {gate_up.dtype}"
        )
    if in_place and _last_contiguous(d_out) is not d_out:
        raise ValueError("in_place requires a d_out with a contiguous last dimension")
    gate_up, d_out = _last_contiguous(gate_up), _last_contiguous(d_out)
    d_gate_up = torch.empty(gate_up.shape, dtype=gate_up.dtype, device=gate_up.device)
    out = d_out if in_place else torch.empty_like(d_out, memory_format=torch.contiguous_format)
    _backward(gate_up, d_out, out, d_gate_up, activation)
    return out, d_gate_up


def _backward(
    gate_up: torch.Tensor,
    d_out: torch.Tensor,
    out: torch.Tensor | None,
    d_gate_up: torch.Tensor,
    activation: Activation,
) -> None:
    """Write the gradient to `d_gate_up`. If `out` is a tensor, also write the result of the forward
    pass to it.

    `out` and `d_out` may be the same tensor.
    """
    if uses_triton(gate_up):
        from .gated_activation_triton import launch_backward

        launch_backward(gate_up, d_out, out, d_gate_up, activation)
    else:
        _backward_cpu(gate_up, d_out, out, d_gate_up, activation)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        ctx.save_for_backward(gate_up)
        ctx.activation = activation
        return gated_forward(gate_up, activation)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: torch.Tensor) -> tuple[torch.Tensor, None]:
        gate_up, d_out = (_last_contiguous(x) for x in (*ctx.saved_tensors, d_out))
        d_gate_up = torch.empty(gate_up.shape, dtype=gate_up.dtype, device=gate_up.device)
        _backward(gate_up, d_out, None, d_gate_up, ctx.activation)
        return d_gate_up, None


def _check(gate_up: torch.Tensor, activation: Activation) -> None:
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up must be [T, 2I], got {list(gate_up.shape)}")
    if activation not in get_args(Activation):
        raise ValueError(f"activation must be one of {get_args(Activation)}, got {activation!r}")


def _last_contiguous(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


_LINEAR = 2 * math.sqrt(2 / math.pi)  # 2 z = _LINEAR g + _CUBIC g^3
_CUBIC = 0.044715 * _LINEAR


def _scratch_dtype(dtype: torch.dtype, activation: Activation) -> torch.dtype:
    return wide(dtype) if activation == "gelu_tanh" else dtype


def _activate(
    gate: torch.Tensor, activation: Activation, out: torch.Tensor, sigmoid: torch.Tensor
) -> None:
    """Write act(gate) [n, I] to `out`.

    For gelu_tanh, also write sigmoid(2 z) to `sigmoid`. torch computes a sigmoid faster than a
    tanh."""
    if activation == "silu":
        torch.ops.aten.silu.out(gate, out=out)
    elif activation == "gelu":
        torch.ops.aten.gelu.out(gate, out=out)
    else:
        torch.mul(gate, gate, out=sigmoid).mul_(_CUBIC).add_(_LINEAR).mul_(gate).sigmoid_()
        torch.mul(sigmoid, gate, out=out)


def _activate_backward(
    d_activated: torch.Tensor,
    gate: torch.Tensor,
    activation: Activation,
    activated: torch.Tensor,
    sigmoid: torch.Tensor,
    out: torch.Tensor,
) -> None:
    if activation == "silu":
        torch.ops.aten.silu_backward.grad_input(d_activated, gate, grad_input=out)
    elif activation == "gelu":
        torch.ops.aten.gelu_backward.grad_input(d_activated, gate, grad_input=out)
    else:
        slope = torch.mul(gate, gate).mul_(3 * _CUBIC).add_(_LINEAR)
        slope.mul_(torch.addcmul(activated, activated, sigmoid, value=-1)).add_(sigmoid)
        torch.mul(slope, d_activated, out=out)


def _forward_cpu(gate_up: torch.Tensor, out: torch.Tensor, activation: Activation) -> None:
    num_rows, size = out.shape
    dtype = _scratch_dtype(out.dtype, activation)
    scratch = out.new_empty(2, rows_per_tile(num_rows, size), size, dtype=dtype)
    for tile in row_tiles(num_rows, size):
        activated, sigmoid = scratch[:, : out[tile].shape[0]]
        _activate(gate_up[tile, :size].to(dtype), activation, activated, sigmoid)
        torch.mul(activated, gate_up[tile, size:], out=out[tile])


def _backward_cpu(
    gate_up: torch.Tensor,
    d_out: torch.Tensor,
    out: torch.Tensor | None,
    d_gate_up: torch.Tensor,
    activation: Activation,
) -> None:
    """Compute `_backward` on a CPU."""
    num_rows, size = d_out.shape
    dtype = _scratch_dtype(d_out.dtype, activation)
    scratch = d_out.new_empty(3, rows_per_tile(num_rows, size), size, dtype=dtype)
    for tile in row_tiles(num_rows, size):
        gate, up, d = gate_up[tile, :size].to(dtype), gate_up[tile, size:], d_out[tile]
        activated, sigmoid, product = scratch[:, : d.shape[0]]
        _activate(gate, activation, activated, sigmoid)
        torch.mul(d, up, out=product)
        d_gate = d_gate_up[tile, :size]
        _activate_backward(product, gate, activation, activated, sigmoid, d_gate)
        if out is not None:
            torch.mul(activated, up, out=product)
        torch.mul(activated, d, out=d_gate_up[tile, size:])
        if out is not None:
            out[tile] = product
