"""A trainable head's gradient: kept from forward for equal upstream weights, else recomputed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import embedding

from tunesmith_kernels import log_prob
from tunesmith_kernels.log_prob import token_log_probs, token_log_probs_reference

from .accuracy import assert_exact, assert_no_worse
from .heads import TRANSFORMS, Head, Scored, accumulate

BUDGET = 9_000  # two rows of 1,000 fp32 logits, four of 16 bits


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the recomputations in backward."""
    calls: list[int] = []
    real: Any = log_prob._head_gradient_again

    def counted(*args: Any) -> Any:
        calls.append(1)
        return real(*args)

    monkeypatch.setattr(log_prob, "_head_gradient_again", counted)
    return calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", TRANSFORMS)
@pytest.mark.parametrize("equal", [True, False])
def test_both_ways_give_the_gradient(
    device: torch.device,
    again: list[int],
    dtype: torch.dtype,
    options: dict[str, Any],
    equal: bool,
) -> None:
    head = Head.random(13, 1000, 48, bias=True, device=device, dtype=dtype)
    if equal:
        head.by_log_prob.fill_(0.3)
    _, truth = head.truth(**options)
    _, eager = head.gradients(token_log_probs_reference, dtype, **options)
    _, ours = head.gradients(token_log_probs, dtype, byte_budget=BUDGET, **options)
    assert len(again) == (0 if equal else 1)
    for gradient, plain, true in zip(ours, eager, truth, strict=True):
        if dtype == torch.float32:
            assert_exact(gradient, true)
        else:
            assert_no_worse(gradient, plain, true)


def test_a_sum_needs_no_look_at_its_gradient(again: list[int]) -> None:
    hidden, weight, _ = Head.random(5, 100, 16).leaves(torch.float32)
    upstream = torch.autograd.grad(hidden.sum(1).sum(), hidden)[0][:, 0].expand(5)
    assert log_prob._all_equal(upstream)
    accumulate(token_log_probs(hidden, weight, None, torch.arange(5)).log_probs.mean())
    assert again == []


@pytest.mark.parametrize("equal", [True, False])
def test_two_steps_accumulate_the_gradient_twice(device: torch.device, equal: bool) -> None:
    head = Head.random(5, 100, 16, bias=True, device=device)
    if equal:
        head.by_log_prob.fill_(0.5)
    leaves = head.leaves(torch.float32)
    first: list[torch.Tensor] = []
    for step in (1, 2):
        scored = token_log_probs(*leaves, head.targets)
        accumulate((scored.log_probs * head.by_log_prob.float()).sum())
        for index, leaf in enumerate(leaves):
            assert leaf is not None
            assert leaf.grad is not None
            if step == 1:
                first.append(leaf.grad.clone())
            else:
                torch.testing.assert_close(leaf.grad, 2 * first[index])
    for gradient, truth in zip(first, head.truth()[1], strict=True):
        assert_exact(gradient, truth)


def test_a_retained_graph_gives_the_same_gradient_again() -> None:
    hidden, weight, _ = Head.random(5, 100, 16).leaves(torch.float32)
    total = token_log_probs(hidden, weight, None, torch.arange(5)).log_probs.sum() * 3
    once = torch.autograd.grad(total, [hidden, weight], retain_graph=True)
    twice = torch.autograd.grad(total, [hidden, weight])
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))


def test_a_head_tied_to_the_embedding_gets_both_gradients(device: torch.device) -> None:
    ids = torch.tensor([3, 1, 4, 1, 5], device=device)
    targets = torch.tensor([1, 4, 1, 5, 9], device=device)
    tied = torch.randn(40, 16, dtype=torch.float64, device=device)

    def gradient(function: Scored, dtype: torch.dtype) -> torch.Tensor:
        weight = tied.clone().to(dtype).requires_grad_()
        hidden = torch.tanh(embedding(ids, weight))
        accumulate(function(hidden, weight, None, targets).log_probs.mean())
        assert weight.grad is not None
        return weight.grad

    truth = gradient(token_log_probs_reference, torch.float64)
    assert_exact(gradient(token_log_probs, torch.float32), truth)


def test_a_frozen_backbone_trains_the_head_alone(device: torch.device) -> None:
    head = Head.random(5, 100, 16, bias=True, device=device)
    hidden, weight, bias = head.leaves(torch.float32)
    assert bias is not None
    scored = token_log_probs(hidden.detach(), weight, bias, head.targets)
    accumulate((scored.log_probs * head.by_log_prob.float()).sum())
    _, (_, true_weight, true_bias) = head.truth()
    assert weight.grad is not None
    assert bias.grad is not None
    assert_exact(weight.grad, true_weight)
    assert_exact(bias.grad, true_bias)
