"""RMSNorm and its gradient, in the three rounding variants of models in transformers. The formulas
are:

    r = 1 / sqrt(mean(x^2) + eps)          per row, fp32
    LLAMA   y = w * cast(x r)              Llama, Mistral, Qwen, Phi-3, SmolLM3, Granite
    GEMMA   y = cast(x r (1 + w))          Gemma 1-3
    OLMO    y = cast(w x r)                OLMo 2

The gradients use g = w dy, or for GEMMA g = (1 + w) dy:

    dx = r (g - x r mean(g x r))           dw = sum over rows of dy x r

RMSNorm is from Zhang and Sennrich, "Root Mean Square Layer Normalization",
https://arxiv.org/abs/1910.07467. For a row of zeros, y is 0 and dx is g / sqrt(eps). The input x
[..., H] is normalised over H. In memory, there may be gaps between rows. If the last dimension of x
is not contiguous, x is copied. The forward pass saves only r, and `rms_norm_apply` recomputes y.
`rms_norm` is differentiable. `rms_norm_forward`, `rms_norm_apply` and `rms_norm_backward` are used
by other autograd functions.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .dispatch import uses_triton
from .tiles import row_tiles, rows_per_tile, wide

__all__ = [
    "NormKind",
    "rms_norm",
    "rms_norm_apply",
    "rms_norm_backward",
    "rms_norm_forward",
    "rms_norm_reference",
]


class NormKind(StrEnum):
    """Variant of RMSNorm. Variants differ in the rounding and in the meaning of the weight."""

    LLAMA = "llama"
    """x r is rounded to the dtype of x, then multiplied by w. The result y has the wider dtype of x
    and w."""
    GEMMA = "gemma"
    """x r is multiplied by 1 + w in fp32. The result y has the dtype of x."""
    OLMO = "olmo"
    """x r is multiplied by w in fp32. The result y has the dtype of x."""


def rms_norm_reference(
    x: torch.Tensor, weight: torch.Tensor, eps: float, kind: NormKind = NormKind.LLAMA
) -> torch.Tensor:
    """Return y [..., H], computed line by line like in the modules of transformers."""
    x_wide = x.to(wide(x.dtype))
    normed = x_wide * torch.rsqrt(x_wide.pow(2).mean(-1, keepdim=True) + eps)
    if kind is NormKind.LLAMA:
        return weight * normed.to(x.dtype)
    if kind is NormKind.GEMMA:
        return (normed * (1.0 + weight.to(wide(weight.dtype)))).to(x.dtype)
    return (weight * normed).to(x.dtype)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, kind: NormKind = NormKind.LLAMA
) -> torch.Tensor:
    """Return y [..., H] for x [..., H] and weight [H].

    The result is differentiable once, in x and weight.

    Raises ValueError if weight is not [H].
    """
    _check(x, weight)
    y: torch.Tensor = _RMSNorm.apply(  # type: ignore[no-untyped-call]  # untyped in torch
        x, weight, eps, kind
    )
    return y


def rms_norm_forward(
    x: torch.Tensor, weight: torch.Tensor, eps: float, kind: NormKind
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return y [..., H] and r [..., 1] for x [..., H] and weight [H].

    The dtype of r is fp32, or float64 if x is float64."""
    _check(x, weight)
    rows = _rows(x)
    y = torch.empty(rows.shape, dtype=_output_dtype(x, weight, kind), device=x.device)
    rstd = torch.empty((*rows.shape[:2], 1), dtype=wide(x.dtype), device=x.device)
    if uses_triton(x):
        from .rms_norm_triton import launch_forward

        launch_forward(rows, weight, y, rstd, kind.value, eps=eps)
    else:
        _forward_cpu(rows, weight, y, rstd, kind, eps=eps)
    return y.view(x.shape), rstd.view(*x.shape[:-1], 1)


def rms_norm_apply(
    x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor, kind: NormKind
) -> torch.Tensor:
    """Recompute y [..., H] of the forward pass bit for bit.

    The shapes are: x [..., H], weight [H] and rstd [..., 1]."""
    _check(x, weight)
    rows = _rows(x)
    y = torch.empty(rows.shape, dtype=_output_dtype(x, weight, kind), device=x.device)
    rstd = rstd.reshape(*rows.shape[:2], 1)
    if uses_triton(x):
        from .rms_norm_triton import launch_forward

        launch_forward(rows, weight, y, rstd, kind.value, eps=None)
    else:
        _forward_cpu(rows, weight, y, rstd, kind, eps=None)
    return y.view(x.shape)


def rms_norm_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    rstd: torch.Tensor,
    kind: NormKind,
    *,
    weight_grad: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return dx [..., H] in the dtype of x, and dweight [H] in the dtype of weight.

    If `weight_grad` is False, dweight is None. The upstream gradient dy [..., H] may have any float
    dtype."""
    _check(x, weight)
    rows = _rows(x)
    dy = _last_contiguous(dy).reshape(rows.shape)
    rstd = rstd.reshape(*rows.shape[:2], 1)
    dx = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    if uses_triton(x):
        from .rms_norm_triton import launch_backward

        dweight = launch_backward(dy, rows, weight, rstd, kind.value, dx, weight_grad)
    else:
        dweight = _backward_cpu(dy, rows, weight, rstd, kind, dx, weight_grad)
    return dx.view(x.shape), None if dweight is None else dweight.to(weight.dtype)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float, kind: NormKind
    ) -> torch.Tensor:
        y, rstd = rms_norm_forward(x, weight, eps, kind)
        ctx.save_for_backward(x, weight, rstd)
        ctx.kind = kind
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, rstd = ctx.saved_tensors
        dx, dweight = rms_norm_backward(
            dy, x, weight, rstd, ctx.kind, weight_grad=ctx.needs_input_grad[1]
        )
        return dx, dweight, None, None


def _check(x: torch.Tensor, weight: torch.Tensor) -> None:
    if x.dim() < 2 or weight.shape != x.shape[-1:]:
        raise ValueError(
            f"x must be [..., H] and weight [H], got {list(x.shape)} and {list(weight.shape)}"
        )


def _output_dtype(x: torch.Tensor, weight: torch.Tensor, kind: NormKind) -> torch.dtype:
    return torch.promote_types(weight.dtype, x.dtype) if kind is NormKind.LLAMA else x.dtype


def _last_contiguous(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Return x [..., H] as [R, n, H], as a view if the strides allow it.

    If all neighbouring rows have the same distance in memory, n is 1. Otherwise, n is the size of
    the dimension before H.
    """
    x = _last_contiguous(x)
    if x.dim() > 3:
        x = x.flatten(0, -3)
    if x.dim() == 3 and x.shape[1] > 1 and x.stride(0) != x.shape[1] * x.stride(1):
        return x
    return x.reshape(-1, 1, x.shape[-1])


def _factor(weight: torch.Tensor, kind: NormKind, dtype: torch.dtype) -> torch.Tensor:
    return weight.to(dtype) + 1 if kind is NormKind.GEMMA else weight.to(dtype)


def _forward_cpu(
    x: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    rstd: torch.Tensor,
    kind: NormKind,
    *,
    eps: float | None,
) -> None:
    """Compute y from x, both [R, n, H].

    With eps, rstd [R, n, 1] is computed; if eps is None, rstd is only read."""
    num_rows, heads, size = x.shape
    factor = _factor(weight, kind, wide(x.dtype))
    scratch = x.new_empty(rows_per_tile(num_rows, heads * size), heads, size, dtype=factor.dtype)
    for tile in row_tiles(num_rows, heads * size):
        r = rstd[tile]
        normed = scratch[: r.shape[0]]
        x_wide = x[tile] if x.dtype == normed.dtype else normed.copy_(x[tile])
        if eps is not None:
            torch.linalg.vecdot(x_wide, x_wide, out=r[..., 0])
            r.div_(size).add_(eps).rsqrt_()
        torch.mul(x_wide, r, out=normed)
        if kind is NormKind.LLAMA:
            torch.mul(normed.to(x.dtype), weight, out=y[tile])
        else:
            y[tile] = normed.mul_(factor)


def _backward_cpu(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    rstd: torch.Tensor,
    kind: NormKind,
    dx: torch.Tensor,
    weight_grad: bool,
) -> torch.Tensor | None:
    """Compute dx [R, n, H], and return dweight [H] in fp32 or None.

    The shapes are: dy and x [R, n, H], and rstd [R, n, 1]."""
    num_rows, heads, size = x.shape
    factor = _factor(weight, kind, wide(x.dtype))
    dweight = torch.zeros_like(factor) if weight_grad else None
    rows = rows_per_tile(num_rows, heads * size)
    scratch = x.new_empty(3, rows, heads, size, dtype=factor.dtype)
    for tile in row_tiles(num_rows, heads * size):
        r = rstd[tile]
        g, product, x_wide = scratch[:, : r.shape[0]]
        x_wide = x[tile] if x.dtype == g.dtype else x_wide.copy_(x[tile])
        if dweight is not None:
            dweight += torch.mul(x_wide, r, out=product).mul_(dy[tile]).sum((0, 1))
        torch.mul(dy[tile], factor, out=g)
        mean = torch.mul(g, x_wide, out=product).mean(-1, keepdim=True).mul_(r).mul_(r)
        dx_wide = dx[tile] if dx.dtype == g.dtype else g
        torch.addcmul(g, x_wide, mean, value=-1, out=dx_wide).mul_(r)
        if dx_wide is g:
            dx[tile] = g
    return dweight
