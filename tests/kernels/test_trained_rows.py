"""Some rows of a frozen head that train: the numbers and gradients of a head that has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tunesmith_kernels.head_chunks import TrainedRows
from tunesmith_kernels.log_prob import token_log_probs, token_log_probs_reference

from .accuracy import assert_exact, assert_no_worse
from .heads import TRANSFORMS, Head, Scored, accumulate

BUDGET = 9_000  # two rows of 1,000 fp32 logits, four of 16 bits
IDS = [999, 0, 513]  # the first two are targets too


def _gradients(
    function: Scored, head: Head, values: torch.Tensor, dtype: torch.dtype, **options: Any
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """log p of each row; the gradients of hidden and of the trained rows."""
    hidden, weight, bias = (
        None if part is None else part.clone().to(dtype)
        for part in (head.hidden, head.weight, head.bias)
    )
    assert hidden is not None
    leaves = [hidden.requires_grad_(), values.clone().to(dtype).requires_grad_()]
    ids = torch.tensor(IDS, device=head.hidden.device)
    through_entropy = options.pop("through_entropy")
    if through_entropy and function is token_log_probs:
        options["entropy"] = "grad"
    scored = function(
        hidden, weight, bias, head.targets, trained=TrainedRows(ids, leaves[1]), **options
    )
    total = (scored.log_probs * head.by_log_prob).sum()
    if through_entropy:
        assert scored.entropy is not None
        total = total + (scored.entropy * head.by_entropy).sum()
    return scored.log_probs, list(torch.autograd.grad(total, leaves))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", TRANSFORMS)
@pytest.mark.parametrize("through_entropy", [False, True])
def test_they_give_the_numbers_of_a_head_that_has_them(
    device: torch.device, dtype: torch.dtype, options: dict[str, Any], through_entropy: bool
) -> None:
    head = Head.random(13, 1000, 48, bias=True, device=device, dtype=dtype)
    values = torch.randn(len(IDS), 48).to(dtype).to(device=device, dtype=torch.float64)
    options = {**options, "through_entropy": through_entropy}
    reference = token_log_probs_reference
    truth, true_gradients = _gradients(reference, head, values, torch.float64, **options)
    plain, eager = _gradients(reference, head, values, dtype, **options)
    ours, found = _gradients(token_log_probs, head, values, dtype, byte_budget=BUDGET, **options)
    for actual, stock, true in zip(
        [ours, *found], [plain, *eager], [truth, *true_gradients], strict=True
    ):
        if dtype == torch.float32:
            assert_exact(actual, true)
        else:
            assert_no_worse(actual, stock, true)


def test_the_frozen_rows_are_as_far_away_as_ever(device: torch.device) -> None:
    """Rows of the weight's own values change nothing."""
    head = Head.random(7, 50, 16, device=device)
    hidden, weight = head.hidden.float(), head.weight.float()
    targets, ids = head.targets, torch.tensor([3, 49], device=device)
    trained = TrainedRows(ids, weight[ids])
    with_rows = token_log_probs(hidden, weight, None, targets, trained=trained, top1=True)
    without = token_log_probs(hidden, weight, None, targets, top1=True)
    torch.testing.assert_close(with_rows.log_probs, without.log_probs, rtol=1e-6, atol=1e-6)
    assert with_rows.is_top1 is not None
    assert without.is_top1 is not None
    assert torch.equal(with_rows.is_top1, without.is_top1)


def test_two_steps_accumulate_and_no_row_at_all_is_no_error(device: torch.device) -> None:
    head = Head.random(5, 40, 16, device=device)
    hidden, weight = head.hidden.float(), head.weight.float()
    values = torch.randn(2, 16, device=device).requires_grad_()
    trained = TrainedRows(torch.tensor([1, 39], device=device), values)
    grads = []
    for rows in (5, 5, 0):
        scored = token_log_probs(hidden[:rows], weight, None, head.targets[:rows], trained=trained)
        if rows:
            accumulate(scored.log_probs.sum())
        assert values.grad is not None
        grads.append(values.grad.clone())
    torch.testing.assert_close(grads[1], 2 * grads[0])
    assert torch.equal(grads[2], grads[1])


@pytest.mark.parametrize(
    ("ids", "shape", "said"),
    [
        ([1, 2], (3, 16), r"values \[k, 16\], got \[2\] torch.int64 and \[3, 16\]"),
        ([1, 2], (2, 8), "got"),
        ([1.0, 2.0], (2, 16), "torch.float32"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    ids: list[Any], shape: tuple[int, ...], said: str
) -> None:
    head = Head.random(5, 40, 16)
    with pytest.raises(ValueError, match=said):
        token_log_probs(
            head.hidden.float(),
            head.weight.float(),
            None,
            head.targets,
            trained=TrainedRows(torch.tensor(ids), torch.zeros(shape)),
        )


def test_a_head_that_trains_as_a_whole_takes_no_rows_beside_it() -> None:
    hidden, weight, _ = Head.random(5, 40, 16).leaves(torch.float32)
    trained = TrainedRows(torch.tensor([1]), torch.zeros(1, 16))
    with pytest.raises(ValueError, match="frozen head"):
        token_log_probs(hidden, weight, None, torch.arange(5), trained=trained)
