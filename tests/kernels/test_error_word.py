"""bf16 and an error word are one fp32 number, and an AdamW step on them is fp32's."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from tunesmith_kernels.adamw import AdamW, adamw_, adamw_reference_
from tunesmith_kernels.error_word import (
    adamw_error_word_,
    adamw_error_word_reference_,
    join_words,
    split_words,
    tied_to_odd,
)

SPEC = AdamW(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1, step=3)


def numbers(*bits: int) -> torch.Tensor:
    signed = [b - (1 << 32) if b >> 31 else b for b in bits]
    return torch.tensor(signed, dtype=torch.int32).view(torch.float32)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_every_finite_number_comes_back_bit_for_bit() -> None:
    """Every upper half there is, with lower halves on both sides of every border."""
    upper = torch.arange(1 << 16, dtype=torch.int32) << 16
    for lower in (0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x1234, 0xBEEF):
        x = (upper | lower).view(torch.float32)
        x = x[x.isfinite()]
        weight, error = split_words(x)
        assert same_bits(join_words(weight, error), x), hex(lower)


def test_the_weight_is_the_nearest_bf16() -> None:
    x = torch.randn(1 << 20)
    weight, error = split_words(x)
    assert torch.equal((weight.float() - x).abs(), (x.bfloat16().float() - x).abs())
    apart = weight != x.bfloat16()
    assert torch.equal(apart, tied_to_odd(weight, error)), "only ties, and all that go to odd"


@pytest.mark.parametrize(
    ("bits", "weight", "tied"),
    [
        (0x3F800000, 0x3F80, False),
        (0x3F807FFF, 0x3F80, False),
        (0x3F808000, 0x3F81, True),  # torch gives 0x3F80
        (0x3F818000, 0x3F82, False),  # as torch
        (0xBF808000, 0xBF81, True),
        (0x7F7FFFFF, 0x7F80, False),  # the largest fp32 is nearest to infinity
        (0x00000001, 0x0000, False),
        (0x80000000, 0x8000, False),  # minus zero
    ],
)
def test_borders(bits: int, weight: int, tied: bool) -> None:
    x = numbers(bits)
    got, error = split_words(x)
    assert int(got.view(torch.int16)) & 0xFFFF == weight
    assert same_bits(join_words(got, error), x)
    assert tied_to_odd(got, error).item() is tied


def test_the_formula_is_torchs_adamw() -> None:
    x, grad = torch.randn(2, 999, dtype=torch.float64)
    theirs = torch.nn.Parameter(x.clone())
    optimizer = torch.optim.AdamW([theirs], lr=SPEC.lr, weight_decay=SPEC.weight_decay)
    m, v, mine = torch.zeros_like(x), torch.zeros_like(x), x.clone()
    for step in range(1, 4):
        theirs.grad = grad * step
        optimizer.step()
        spec = AdamW(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1, step=step)
        adamw_reference_(mine, grad * step, m, v, spec)
    torch.testing.assert_close(mine, theirs.detach(), rtol=1e-12, atol=1e-15)


def problem(size: int, device: torch.device, grad: torch.dtype) -> list[torch.Tensor]:
    """weight, error, grad, m, v"""
    weight, error = split_words(torch.randn(size))
    tensors = [weight, error, torch.randn(size).to(grad), torch.randn(size) / 10, torch.rand(size)]
    return [tensor.to(device) for tensor in tensors]


def step(tensors: Iterable[torch.Tensor]) -> None:
    weight, error, grad, m, v = tensors
    adamw_error_word_(weight, error, grad, m, v, SPEC)


def reference_step(tensors: Iterable[torch.Tensor]) -> None:
    weight, error, grad, m, v = tensors
    adamw_error_word_reference_(weight, error, grad, m, v, SPEC)


def assert_steps_as_the_reference(tensors: list[torch.Tensor], *, atol: float) -> None:
    """`atol` of the moments."""
    expected = [tensor.clone() for tensor in tensors]
    step(tensors)
    reference_step(expected)
    masters = [join_words(one[0], one[1]) for one in (tensors, expected)]
    # An update is a few fp32 roundings, so the master may be one or two apart, of its own size.
    torch.testing.assert_close(masters[0], masters[1], rtol=3e-7, atol=1e-9)
    for actual, wanted in zip(tensors[3:], expected[3:], strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-6, atol=atol)
    assert same_bits(split_words(masters[0])[0], tensors[0]), "the weight is the master's nearest"


@pytest.mark.parametrize("grad", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [1, 255, 1024, 2501])
@pytest.mark.usefixtures("small_tiles")
def test_a_step_equals_the_reference(size: int, grad: torch.dtype, device: torch.device) -> None:
    # Terms of up to 0.4 cancel in m: one rounding of those.
    assert_steps_as_the_reference(problem(size, device, grad), atol=3e-8)


@pytest.mark.gpu
@pytest.mark.parametrize("grad", [torch.bfloat16, torch.float32])
def test_a_step_on_a_real_weight(grad: torch.dtype) -> None:
    """Llama 3.1 8B's gate projection and one element more."""
    tensors = problem(14_336 * 4096 + 1, torch.device("cuda"), grad)
    tensors[4].mul_(0.9).add_(0.1)  # no element's v so small that m's last bit moves the weight
    # Of so many numbers a few cancel in m that are above 0.5: their roundings.
    assert_steps_as_the_reference(tensors, atol=6e-8)


def test_a_step_on_a_cpu_is_fp32s_bit_for_bit() -> None:
    weight, error, grad, m, v = problem(700_001, torch.device("cpu"), torch.bfloat16)
    master, m32, v32 = join_words(weight, error), m.clone(), v.clone()
    adamw_error_word_(weight, error, grad, m, v, SPEC)
    adamw_(master, grad.float(), m32, v32, SPEC)
    assert same_bits(join_words(weight, error), master)
    assert same_bits(m, m32)
    assert same_bits(v, v32)


def test_nan_stays_nan(device: torch.device) -> None:
    tensors = problem(3, device, torch.bfloat16)
    tensors[2][1] = float("nan")
    step(tensors)
    assert tensors[0].isnan().tolist() == [False, True, False]


def test_nothing_is_fine(device: torch.device) -> None:
    step(problem(0, device, torch.bfloat16))


def test_wrong_tensors_are_named() -> None:
    tensors = problem(8, torch.device("cpu"), torch.bfloat16)
    with pytest.raises(ValueError, match="must be weight bf16, error int16"):
        step([tensors[0].float(), *tensors[1:]])
    with pytest.raises(ValueError, match=r"contiguous and \[n\]"):
        step([tensors[0][::2], *(one[:4] for one in tensors[1:])])
