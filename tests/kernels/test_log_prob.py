"""Chunked log-probabilities against the reference: outputs, every gradient, every dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from tunesmith_kernels import log_prob
from tunesmith_kernels.head_chunks import HeadGradient
from tunesmith_kernels.log_prob import token_log_probs, token_log_probs_reference

from .accuracy import assert_exact, assert_no_worse, relative_error
from .heads import TRANSFORMS, Head

SHAPES = [(1, 1, 1), (7, 7, 1), (5, 1000, 48), (3, 4097, 100), (2, 65_537, 8)]
LOW_PRECISION = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", TRANSFORMS)
@pytest.mark.parametrize("bias", [False, True])
def test_fp32_equals_float64_forward_and_backward(
    device: torch.device, shape: tuple[int, int, int], options: dict[str, Any], bias: bool
) -> None:
    head = Head.random(*shape, bias=bias, device=device)
    truth, true_gradients = head.truth(**options)
    budget = 2 * shape[1] * 4  # two rows a chunk
    scored, gradients = head.gradients(
        token_log_probs, torch.float32, entropy=True, top1=True, byte_budget=budget, **options
    )
    assert scored.entropy is not None
    assert truth.entropy is not None
    assert_exact(scored.log_probs, truth.log_probs)
    assert_exact(scored.entropy, truth.entropy)
    assert scored.is_top1 is not None
    assert truth.is_top1 is not None
    assert torch.equal(scored.is_top1, truth.is_top1)
    for gradient, true_gradient in zip(gradients, true_gradients, strict=True):
        assert_exact(gradient, true_gradient)


@pytest.mark.parametrize("options", TRANSFORMS)
def test_the_entropy_has_a_gradient_when_asked(
    device: torch.device, options: dict[str, Any]
) -> None:
    head = Head.random(6, 1000, 48, bias=True, device=device)
    truth, true_gradients = head.truth(through_entropy=True, **options)
    scored, gradients = head.gradients(
        token_log_probs, torch.float32, through_entropy=True, byte_budget=20_000, **options
    )
    assert scored.entropy is not None
    assert truth.entropy is not None
    assert_exact(scored.entropy, truth.entropy)
    for gradient, true_gradient in zip(gradients, true_gradients, strict=True):
        assert_exact(gradient, true_gradient)


def test_the_entropy_alone_has_a_gradient(device: torch.device) -> None:
    head = Head.random(3, 50, 16, device=device)
    head.by_log_prob.zero_()
    _, truth = head.truth(through_entropy=True)
    hidden, weight, _ = head.leaves(torch.float32)
    scored = token_log_probs(hidden, weight, None, head.targets, entropy="grad")
    assert scored.entropy is not None
    gradients = torch.autograd.grad([scored.entropy], [hidden, weight], [head.by_entropy.float()])
    for gradient, true_gradient in zip(gradients, truth, strict=True):
        assert_exact(gradient, true_gradient)


def test_the_entropy_for_logging_has_no_gradient() -> None:
    hidden, weight, _ = Head.random(3, 50, 16).leaves(torch.float32)
    scored = token_log_probs(hidden, weight, None, torch.tensor([1, 2, 3]), entropy=True, top1=True)
    assert scored.entropy is not None
    assert scored.is_top1 is not None
    assert scored.log_probs.requires_grad
    assert not scored.entropy.requires_grad
    assert not scored.is_top1.requires_grad


@pytest.mark.parametrize("dtype", LOW_PRECISION)
@pytest.mark.parametrize("options", TRANSFORMS)
@pytest.mark.parametrize("through_entropy", [False, True])
def test_half_precision_is_no_worse_than_eager(
    device: torch.device, dtype: torch.dtype, options: dict[str, Any], through_entropy: bool
) -> None:
    head = Head.random(17, 1000, 48, bias=True, device=device, dtype=dtype)
    truth, true_gradients = head.truth(through_entropy=through_entropy, **options)
    eager, eager_gradients = head.gradients(
        token_log_probs_reference, dtype, through_entropy=through_entropy, **options
    )
    scored, gradients = head.gradients(
        token_log_probs, dtype, through_entropy=through_entropy, byte_budget=9_000, **options
    )
    assert_no_worse(scored.log_probs, eager.log_probs, truth.log_probs)
    for parts in zip(gradients, eager_gradients, true_gradients, strict=True):
        assert_no_worse(*parts)


@pytest.mark.gpu
@pytest.mark.parametrize("options", TRANSFORMS)
@pytest.mark.parametrize("through_entropy", [False, True])
@pytest.mark.parametrize(("vocabulary", "width"), [(128_256, 2048), (151_936, 896)])
def test_real_shapes(
    vocabulary: int, width: int, options: dict[str, Any], through_entropy: bool
) -> None:
    """The heads of Llama 3.2 1B and Qwen 2.5 0.5B, in chunks of which the last is ragged."""
    settings: dict[str, Any] = {**options, "through_entropy": through_entropy}
    in_chunks: dict[str, Any] = {**settings, "byte_budget": 100 << 20}
    head = Head.random(1000, vocabulary, width, device="cuda", dtype=torch.bfloat16)
    truth, true_gradients = head.truth(**settings)
    scored, gradients = head.gradients(token_log_probs, torch.float32, **in_chunks)
    assert relative_error(scored.log_probs, truth.log_probs) <= 1e-5
    for one, true in zip(gradients, true_gradients, strict=True):
        assert relative_error(one, true) <= 1e-5
    eager, eager_gradients = head.gradients(token_log_probs_reference, torch.bfloat16, **settings)
    scored, gradients = head.gradients(token_log_probs, torch.bfloat16, **in_chunks)
    assert_no_worse(scored.log_probs, eager.log_probs, truth.log_probs)
    for parts in zip(gradients, eager_gradients, true_gradients, strict=True):
        assert_no_worse(*parts)


def test_equal_logits_make_the_first_column_top1(device: torch.device) -> None:
    weight = torch.ones(6, 4, device=device)
    weight[4] = -1.0
    hidden = torch.ones(6, 4, device=device)
    targets = torch.arange(6, device=device)
    scored = token_log_probs(hidden, weight, None, targets, top1=True)
    assert scored.is_top1 is not None
    assert scored.is_top1.tolist() == [True, False, False, False, False, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_rows_give_nothing_and_zero_gradients(device: torch.device, dtype: torch.dtype) -> None:
    head = Head.random(0, 10, 4, bias=True, device=device)
    scored, gradients = head.gradients(token_log_probs, dtype, through_entropy=True, top1=True)
    assert [part.shape for part in scored if part is not None] == [torch.Size([0])] * 3
    assert [g.shape for g in gradients] == [(0, 4), (10, 4), (10,)]
    assert all(bool((gradient == 0).all()) for gradient in gradients)


def test_gradient_work_is_skipped_when_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, _ = Head.random(3, 50, 16).leaves(torch.float32)
    targets = torch.tensor([1, 2, 3])
    expected = token_log_probs(hidden, weight, None, targets).log_probs

    def fail(*_: object) -> None:
        raise AssertionError("gradient work")

    monkeypatch.setattr(log_prob, "hidden_gradients", fail)
    monkeypatch.setattr(HeadGradient, "add", fail)
    with torch.no_grad():
        scored = token_log_probs(hidden, weight, None, targets)
    assert torch.equal(scored.log_probs, expected)
    assert not scored.log_probs.requires_grad
    detached = token_log_probs(hidden.detach(), weight.detach(), None, targets)
    assert torch.equal(detached.log_probs, expected)


def test_autocast_projects_in_its_dtype_as_a_linear_layer_would() -> None:
    head = Head.random(9, 300, 48, bias=True)
    hidden, weight, bias = head.leaves(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scored = token_log_probs(hidden, weight, bias, head.targets)
        logits = linear(hidden, weight, bias)
    assert logits.dtype == torch.bfloat16
    expected = torch.log_softmax(logits.float(), -1).gather(1, head.targets[:, None])[:, 0]
    torch.testing.assert_close(scored.log_probs, expected)
    assert scored.log_probs.dtype == torch.float32
    by_ours = torch.autograd.grad(scored.log_probs.sum(), [hidden, weight])
    by_eager = torch.autograd.grad(expected.sum(), [hidden, weight])
    assert [g.dtype for g in by_ours] == [torch.float32] * 2
    for ours, eager in zip(by_ours, by_eager, strict=True):
        assert float((ours - eager).norm() / eager.norm()) < 2**-7


def test_a_weight_of_another_dtype_is_cast_to_that_of_hidden() -> None:
    head = Head.random(5, 40, 16, dtype=torch.bfloat16)
    mixed = token_log_probs(head.hidden.bfloat16(), head.weight.float(), None, head.targets)
    half = token_log_probs(head.hidden.bfloat16(), head.weight.bfloat16(), None, head.targets)
    assert torch.equal(mixed.log_probs, half.log_probs)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden": torch.zeros(2, 3)}, r"hidden must be \[N, H\] and weight \[V, H\], got"),
        ({"bias": torch.zeros(3)}, r"bias must be \[5\], got \[3\]"),
        ({"targets": torch.tensor([1])}, r"targets must be \[2\] int64, got \[1\]"),
        ({"targets": torch.tensor([1, -100])}, r"in \[0, 5\), got -100; remove rows without"),
        ({"targets": torch.tensor([1, 5])}, r"in \[0, 5\), got 5"),
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
        ({"softcap": 0.0}, "softcap must be above 0 or None, got 0.0"),
        ({"byte_budget": 0}, "byte_budget must be at least 1, got 0"),
    ],
)
def test_what_does_not_fit_is_named(changed: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "hidden": torch.zeros(2, 4),
        "weight": torch.zeros(5, 4),
        "bias": None,
        "targets": torch.tensor([0, 1]),
    }
    with pytest.raises(ValueError, match=message):
        token_log_probs(**(given | changed))
