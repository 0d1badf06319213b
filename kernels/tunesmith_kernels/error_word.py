"""Split of an fp32 weight into a bf16 weight and a 16-bit error word, and an AdamW step on both.

Let bits(x) be the integer with the same bits as the fp32 number x:

    bits(x) = 2^16 bits(w) + e          w bf16, e int16

The weight w is the bf16 number nearest to x; ties are rounded away from zero. The error word e is
the lower half of the bits of x, as a signed number. Every finite fp32 number has exactly one pair
of w and e, and this pair restores the number exactly. The model computes with w alone. torch rounds
ties to even numbers instead, so about one weight in 131,072 differs from torch's rounding.
`tied_to_odd` finds the weights that differ from torch's rounding.

Each weight takes 4 bytes for w and e, and 8 bytes for AdamW's two moments. The method is described
in https://arxiv.org/abs/2010.06192 (section 5) and https://arxiv.org/abs/2602.23349.
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
    """Split an fp32 tensor into bf16 weights and int16 error words.

    The two parts restore every finite number exactly. A number above the largest bf16 number has an
    infinite bf16 weight, but is also restored exactly."""
    bits = master.contiguous().view(torch.int32)
    weight = ((bits + _HALF) >> 16).to(torch.int16).view(torch.bfloat16)
    return weight, bits.to(torch.int16)


def join_words(weight: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """Restore the fp32 tensor that `split_words` split, bit for bit."""
    bits = (weight.contiguous().view(torch.int16).int() << 16) + error
    return bits.view(torch.float32)


def tied_to_odd(weight: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """Return a bool mask of the weights that differ from torch's rounding of the same fp32 number.
    In these places, the fp32 number is exactly between two bf16 numbers: torch rounds it to the
    even number, and `weight` is the odd number."""
    return (error == -_HALF) & (weight.view(torch.int16) & 1).bool()


def adamw_error_word_reference_(
    weight: torch.Tensor,
    error: torch.Tensor,
    grad: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
    spec: AdamW,
) -> None:
    """Compute the same step as `adamw_error_word_` line by line from the formulas."""
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
    """Compute one AdamW step in place. Each tensor has shape [n].

    The dtypes are: weight bf16, error int16, grad bf16 or fp32, m and v fp32.

    `found_inf`: fp32 scalar on the device of `weight`. If `found_inf` is 1, all tensors stay
    unchanged. Raises ValueError for a wrong dtype, shape or memory layout.
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
            "the dtypes must be weight bf16, error int16, grad bf16 or fp32, m fp32, v fp32; got "
            + ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        )
    flat = all(tensor.dim() == 1 and tensor.is_contiguous() for tensor in tensors)
    if not flat or len({tensor.shape for tensor in tensors}) > 1:
        raise ValueError(
            f"all must be contiguous and [n], got {[list(tensor.shape) for tensor in tensors]}"
        )
