"""fp32 weights kept as bf16 and a 16-bit error word, and an AdamW step on them.

The bits of a fp32 number x, as an integer, are

    bits(x) = 2^16 bits(w) + e          w bf16, e int16

with w the nearest bf16 to x, ties away from zero: e is x's lower half as a signed number, and w the
upper half, plus 1 where e is negative. Every finite x has one such pair and comes back exactly, so
that w and e together are a fp32 master weight, and w alone is what the model computes with.
torch rounds ties to even; `tied_to_odd` names the weights, about one in 131,072, that differ.

The idea is that of split SGD (https://arxiv.org/abs/2010.06192, section 5) and of
https://arxiv.org/abs/2602.23349. Bytes a weight: 2 + 2, and 4 + 4 for AdamW's moments.
"""

from __future__ import annotations

import torch

from .adamw import AdamW, adamw_, adamw_reference_
from .dispatch import uses_triton
from .tiles import row_tiles, rows_per_tile

__all__ = [
    "adamw_error_word_",
    "adamw_error_word_reference_",
    "join_words",
    "split_words",
    "tied_to_odd",
]

_HALF = 1 << 15


def split_words(master: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 of any shape -> its nearest bf16, and the error word in int16; exact for finite
    numbers. Beyond the largest bf16 the first of them is an infinity, and the pair still exact."""
    bits = master.contiguous().view(torch.int32)
    weight = ((bits + _HALF) >> 16).to(torch.int16).view(torch.bfloat16)
    return weight, bits.to(torch.int16)


def join_words(weight: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """bf16 and int16 of one shape -> the fp32 that `split_words` took apart, bit for bit."""
    bits = (weight.contiguous().view(torch.int16).int() << 16) + error
    return bits.view(torch.float32)


def tied_to_odd(weight: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """bool, where the master weight lies half-way between two bf16 and `weight` is the odd one:
    rounded to even, as torch does it, it would be the one below in size."""
    return (error == -_HALF) & (weight.view(torch.int16) & 1).bool()


def adamw_error_word_reference_(
    weight: torch.Tensor,
    error: torch.Tensor,
    grad: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
    spec: AdamW,
) -> None:
    """As `adamw_error_word_`, by the formulas."""
    master = join_words(weight, error)
    adamw_reference_(master, grad.float(), m, v, spec)
    new_weight, new_error = split_words(master)
    weight.copy_(new_weight)
    error.copy_(new_error)


def adamw_error_word_(
    weight: torch.Tensor,
    error: torch.Tensor,
    grad: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
    spec: AdamW,
    found_inf: torch.Tensor | None = None,
) -> None:
    """One step in place. weight bf16, error int16, grad bf16 or fp32, m and v fp32, all [n].
    `found_inf`: fp32 scalar there; where it is 1, all stay as they are.

    Raises ValueError when a dtype, a shape or the memory's layout is another.
    """
    _check(weight, error, grad, m, v)
    if uses_triton(weight):
        from .adamw_triton import launch_error_word

        launch_error_word(weight, error, grad, m, v, spec, found_inf)
        return
    size = weight.numel()
    master = torch.empty(rows_per_tile(size, 1), dtype=torch.float32)
    wide_grad = torch.empty_like(master)
    bits, upper = master.view(torch.int32), weight.view(torch.int16)
    for tile in row_tiles(size, 1):
        n = len(upper[tile])
        bits[:n].copy_(upper[tile]).bitwise_left_shift_(16).add_(error[tile])
        g = grad[tile] if grad.dtype == torch.float32 else wide_grad[:n].copy_(grad[tile])
        adamw_(master[:n], g, m[tile], v[tile], spec, found_inf)
        error[tile].copy_(bits[:n])
        upper[tile].copy_(bits[:n].add_(_HALF).bitwise_right_shift_(16))


def _check(
    weight: torch.Tensor,
    error: torch.Tensor,
    grad: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
) -> None:
    tensors = (weight, error, grad, m, v)
    dtypes = [tensor.dtype for tensor in tensors]
    wanted = [torch.bfloat16, torch.int16, grad.dtype, torch.float32, torch.float32]
    if dtypes != wanted or grad.dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(
            "weight, error, grad, m, v must be bf16, int16, bf16 or fp32, fp32, fp32; got "
            + ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        )
    flat = all(tensor.dim() == 1 and tensor.is_contiguous() for tensor in tensors)
    if not flat or len({tensor.shape for tensor in tensors}) > 1:
        raise ValueError(
            f"all must be contiguous and [n], got {[list(tensor.shape) for tensor in tensors]}"
        )
