"""The fused loss against full logits: dropped rows, divisors, empty micro-batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tunesmith_kernels import linear_cross_entropy as module
from tunesmith_kernels.linear_cross_entropy import (
    linear_cross_entropy,
    linear_cross_entropy_reference,
)
from tunesmith_kernels.log_prob import token_log_probs

from .accuracy import assert_exact, assert_no_worse
from .heads import Head, accumulate

CAPPED = {"softcap": 3.0, "logit_scale": 0.6}


def loss_and_gradients(
    function: Any, head: Head, labels: torch.Tensor, dtype: torch.dtype, **options: Any
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    hidden, weight, bias = head.leaves(dtype)
    shaped = hidden.view(*labels.shape, -1)
    loss = function(shaped, weight, bias, labels, **options)
    leaves = [leaf for leaf in (hidden, weight, bias) if leaf is not None]
    return loss, torch.autograd.grad(loss, leaves)


def labels_of(head: Head, *shape: int) -> torch.Tensor:
    """Every third label is left out, the first row's and the last row's too."""
    labels = head.targets.clone()
    labels[::3] = -100
    labels[-1] = -100
    return labels.view(*shape)


@pytest.mark.parametrize("shape", [(12,), (3, 4)])
@pytest.mark.parametrize("options", [{}, CAPPED])
@pytest.mark.parametrize(
    "divisor", [{}, {"reduction": "sum"}, {"num_items": 40}, {"num_items": torch.tensor(40)}]
)
def test_fp32_equals_float64_forward_and_backward(
    device: torch.device, shape: tuple[int, ...], options: dict[str, Any], divisor: dict[str, Any]
) -> None:
    head = Head.random(12, 1000, 48, bias=True, device=device)
    labels = labels_of(head, *shape)
    truth, true_gradients = loss_and_gradients(
        linear_cross_entropy_reference, head, labels, torch.float64, **options, **divisor
    )
    loss, gradients = loss_and_gradients(
        linear_cross_entropy, head, labels, torch.float32, byte_budget=9000, **options, **divisor
    )
    assert loss.dtype == torch.float32
    assert_exact(loss, truth)
    for gradient, true_gradient in zip(gradients, true_gradients, strict=True):
        assert_exact(gradient, true_gradient)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, CAPPED])
def test_half_precision_is_no_worse_than_eager(
    device: torch.device, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    head = Head.random(48, 1000, 48, bias=True, device=device, dtype=dtype)
    labels = labels_of(head, 48)
    cases = (
        (linear_cross_entropy, dtype),
        (linear_cross_entropy_reference, dtype),
        (linear_cross_entropy_reference, torch.float64),
    )
    (loss, ours), (_, eager), (truth, true) = (
        loss_and_gradients(function, head, labels, precision, **options)
        for function, precision in cases
    )
    assert loss.item() == pytest.approx(truth.item(), rel=1e-3)
    for parts in zip(ours, eager, true, strict=True):
        assert_no_worse(*parts)


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 9])
def test_a_label_never_moves_to_another_row(device: torch.device, rows: int) -> None:
    """Chunks of four kept rows; each row has a label that no other row would give a low loss."""
    hidden = torch.eye(rows, device=device).repeat_interleave(2, 0) * 50
    labels = torch.stack(
        [torch.full((rows,), -100, device=device), torch.arange(rows, device=device)], 1
    ).view(-1)
    weight = torch.eye(rows, device=device)
    loss = linear_cross_entropy(hidden, weight, None, labels, byte_budget=4 * rows * 4)
    assert loss.item() < 1e-6


def test_rows_without_a_label_never_reach_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = token_log_probs

    def recorded(hidden: torch.Tensor, *args: Any, **options: Any) -> Any:
        seen.append(len(hidden))
        return real(hidden, *args, **options)

    monkeypatch.setattr(module, "token_log_probs", recorded)
    head = Head.random(12, 100, 8)
    loss_and_gradients(linear_cross_entropy, head, labels_of(head, 12), torch.float32)
    assert seen == [7]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_label_at_all_is_a_loss_of_zero(
    device: torch.device, reduction: str, dtype: torch.dtype
) -> None:
    head = Head.random(6, 100, 8, bias=True, device=device)
    labels = torch.full((2, 3), -100, device=device)
    loss, gradients = loss_and_gradients(
        linear_cross_entropy, head, labels, dtype, reduction=reduction
    )
    assert loss.item() == 0.0
    assert all(bool((gradient == 0).all()) for gradient in gradients)


def test_micro_batches_add_up_to_the_step(device: torch.device) -> None:
    """With the step's label count as divisor, one of the micro-batches without a label."""
    head = Head.random(12, 100, 8, device=device)
    labels = labels_of(head, 3, 4)
    labels[1] = -100
    count = int((labels != -100).sum())
    whole = loss_and_gradients(linear_cross_entropy, head, labels, torch.float32)
    hidden, weight, _ = head.leaves(torch.float32)
    total = 0.0
    for part, part_labels in zip(hidden.view(3, 4, -1), labels, strict=True):
        loss = linear_cross_entropy(part, weight, None, part_labels, num_items=count)
        accumulate(loss)
        total += loss.item()
    assert total == pytest.approx(whole[0].item(), rel=1e-6)
    assert hidden.grad is not None
    assert weight.grad is not None
    assert_exact(hidden.grad, whole[1][0])
    assert_exact(weight.grad, whole[1][1])


def test_another_ignore_index(device: torch.device) -> None:
    head = Head.random(4, 50, 8, device=device)
    labels = head.targets.clone()
    labels[2] = 7
    options = {"ignore_index": 7}
    loss, _ = loss_and_gradients(linear_cross_entropy, head, labels, torch.float32, **options)
    truth, _ = loss_and_gradients(
        linear_cross_entropy_reference, head, labels, torch.float64, **options
    )
    assert_exact(loss, truth)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (torch.zeros(3, dtype=torch.long), {}, r"labels must be \[2\], one for each row"),
        (torch.tensor([0, 9]), {}, r"in \[0, 5\), got 9"),
        (torch.tensor([0, 1]), {"reduction": "none"}, "reduction must be"),
        (torch.tensor([0, 1]), {"reduction": "sum", "num_items": 3}, "num_items divides a mean"),
    ],
)
def test_what_does_not_fit_is_named(
    labels: torch.Tensor, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(torch.zeros(2, 4), torch.zeros(5, 4), None, labels, **options)
