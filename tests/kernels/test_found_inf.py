"""Where `found_inf` is 1 an optimiser's step changes no bit; where it is 0, it is not there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tunesmith_kernels.adamw import AdamW, adamw_
from tunesmith_kernels.adamw_8bit import adamw_8bit_
from tunesmith_kernels.error_word import adamw_error_word_, split_words
from tunesmith_kernels.moment_codes import Moments

from .test_adamw_8bit import empty_moments

SPEC = AdamW(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1, step=2)
SIZE = 2501
Step = Callable[[torch.Tensor, torch.Tensor | None], None]
"""Of a gradient and the flag."""


def plain(device: torch.device) -> tuple[list[torch.Tensor], Step]:
    state = [torch.randn(SIZE, device=device), *torch.rand(2, SIZE, device=device)]
    return state, lambda grad, found: adamw_(state[0], grad, state[1], state[2], SPEC, found)


def error_word(device: torch.device) -> tuple[list[torch.Tensor], Step]:
    parts = [*split_words(torch.randn(SIZE)), torch.rand(SIZE), torch.rand(SIZE)]
    weight, error, m, v = state = [part.to(device) for part in parts]
    return state, lambda grad, found: adamw_error_word_(weight, error, grad, m, v, SPEC, found)


def eight_bit(device: torch.device) -> tuple[list[torch.Tensor], Step]:
    weight, moments = torch.randn(SIZE, device=device).bfloat16(), empty_moments(SIZE, device)
    adamw_8bit_(weight, moments, torch.randn(SIZE, device=device), SPEC, 3)
    state = [weight, *fields(moments)]
    return state, lambda grad, found: adamw_8bit_(weight, moments, grad, SPEC, 7, found)


def fields(moments: Moments) -> list[torch.Tensor]:
    return [moments.m_code, moments.m_scale, moments.v_code, moments.v_scale]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("optimizer", [plain, error_word, eight_bit])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_flagged_step_changes_no_bit(
    optimizer: Callable[[torch.device], tuple[list[torch.Tensor], Step]],
    bad: float,
    device: torch.device,
) -> None:
    state, step = optimizer(device)
    before = [one.clone() for one in state]
    step(torch.full((SIZE,), bad, device=device), torch.ones((), device=device))
    assert all(map(same_bits, state, before))


@pytest.mark.parametrize("optimizer", [plain, error_word, eight_bit])
def test_an_unflagged_step_is_the_step_without_a_flag(
    optimizer: Callable[[torch.device], tuple[list[torch.Tensor], Step]], device: torch.device
) -> None:
    grad = torch.randn(SIZE, device=device)
    results = []
    for found in (None, torch.zeros((), device=device)):
        torch.manual_seed(0)
        state, step = optimizer(device)
        before = [one.clone() for one in state]
        step(grad, found)
        assert not all(map(same_bits, state, before))
        results.append(state)
    assert all(map(same_bits, *results))
