"""The same numbers whatever the chunks, and never a tensor of the size of the logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tunesmith_kernels import log_prob
from tunesmith_kernels.log_prob import token_log_probs, token_log_probs_reference

from .accuracy import assert_exact, relative_error
from .heads import Head, accumulate

CHUNK = 4
ROWS = [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 1]


@pytest.mark.parametrize("vocabulary", [1000, 65_537, 151_936, 262_144])
@pytest.mark.parametrize("rows", ROWS)
def test_rows_at_the_edge_of_a_chunk(vocabulary: int, rows: int) -> None:
    head = Head.random(rows, vocabulary, 4)
    truth, true_gradients = head.truth()
    scored, gradients = head.gradients(
        token_log_probs, torch.float32, byte_budget=CHUNK * vocabulary * 4
    )
    assert_exact(scored.log_probs, truth.log_probs)
    # a sum over so many columns is off by more than 1e-5 now and then, in eager torch most
    _, eager = head.gradients(token_log_probs_reference, torch.float32)
    for gradient, plain, true in zip(gradients, eager, true_gradients, strict=True):
        limit = max(1e-5, 1.5 * relative_error(plain, true))
        assert relative_error(gradient, true) <= limit


@pytest.mark.parametrize("rows", ROWS)
def test_rows_at_the_edge_of_a_chunk_on_both_paths(device: torch.device, rows: int) -> None:
    head = Head.random(rows, 5000, 4, device=device)
    truth, true_gradients = head.truth()
    scored, gradients = head.gradients(token_log_probs, torch.float32, byte_budget=CHUNK * 5000 * 4)
    assert_exact(scored.log_probs, truth.log_probs)
    for gradient, true_gradient in zip(gradients, true_gradients, strict=True):
        assert_exact(gradient, true_gradient)


class _Largest(TorchDispatchMode):
    """Bytes of the largest tensor that any operation gave."""

    largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # torch's signature
        given = func(*args, **(kwargs or {}))
        for tensor in given if isinstance(given, tuple | list) else (given,):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.untyped_storage().nbytes())
        return given


@pytest.mark.parametrize("trainable", [False, True])
def test_nothing_is_as_large_as_the_logits(trainable: bool) -> None:
    rows, vocabulary, width = 64, 5000, 8
    hidden, weight, _ = Head.random(rows, vocabulary, width).leaves(torch.float32)
    weight.requires_grad_(trainable)
    budget = rows * vocabulary * 4 // 8
    upstream = torch.arange(1.0, rows + 1)
    with _Largest() as seen:  # type: ignore[no-untyped-call]  # torch's
        scored = token_log_probs(
            hidden, weight, None, torch.arange(rows), entropy=True, byte_budget=budget
        )
        accumulate((scored.log_probs * upstream).sum())
    assert seen.largest == budget


@pytest.mark.gpu
def test_more_than_two_to_the_31_logits_in_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, vocabulary, width = 8200, 262_144, 16
    monkeypatch.setattr(log_prob, "_MOST_ROWS_ELSEWHERE", rows)
    hidden = torch.randn(rows, width, device="cuda").bfloat16().requires_grad_()
    weight = torch.randn(vocabulary, width, device="cuda").bfloat16()
    targets = torch.randint(vocabulary, (rows,), device="cuda")
    scored = token_log_probs(hidden, weight, None, targets, byte_budget=5 << 30)
    accumulate(scored.log_probs.sum())
    assert hidden.grad is not None
    for part in (slice(0, 64), slice(rows - 64, rows)):
        few = hidden.detach()[part].clone().requires_grad_()
        truth = token_log_probs_reference(few, weight, None, targets[part])
        accumulate(truth.log_probs.sum())
        assert few.grad is not None
        torch.testing.assert_close(scored.log_probs[part], truth.log_probs, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(hidden.grad[part], few.grad, rtol=2e-2, atol=2e-2)
