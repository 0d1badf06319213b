"""RMSNorm of the queries and keys inside q | k | v: the reference, in value and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tunesmith_kernels.qk_norm import qk_norm, qk_norm_reference
from tunesmith_kernels.rms_norm import NormKind
from tunesmith_kernels.segments import AttentionShape

from .accuracy import assert_exact, assert_no_worse, relative_error

SHAPES = [AttentionShape(4, 2, 8, 1.0), AttentionShape(3, 3, 5, 1.0), AttentionShape(5, 1, 16, 1.0)]
EPS = 1e-6

kinds = pytest.mark.parametrize("kind", list(NormKind))
shapes = pytest.mark.parametrize("shape", SHAPES, ids=["gqa", "mha", "mqa"])
over = pytest.mark.parametrize("per_head", [True, False], ids=["per-head", "over-heads"])


def _draw(rows: int, shape: AttentionShape, per_head: bool) -> list[torch.Tensor]:
    """q | k | v and the two weights, float64."""
    heads = (1, 1) if per_head else (shape.heads, shape.kv_heads)
    weights = [torch.randn(n * shape.head_dim, dtype=torch.float64) for n in heads]
    return [torch.randn(rows, shape.width, dtype=torch.float64) * 3, *weights]


def _both(
    function: Any,  # the operation or its reference
    tensors: list[torch.Tensor],
    kind: NormKind,
    shape: AttentionShape,
) -> list[torch.Tensor]:
    """The output and the gradients of q | k | v and the weights."""
    leaves = [x.clone().requires_grad_() for x in tensors]
    out = function(leaves[0] * 1, *leaves[1:], EPS, kind, shape)
    upstream = torch.randn(
        out.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream.to(out))]


@kinds
@shapes
@over
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_float64_equals_the_reference(
    kind: NormKind, shape: AttentionShape, per_head: bool, rows: int
) -> None:
    tensors = _draw(rows, shape, per_head)
    ours, expected = (_both(f, tensors, kind, shape) for f in (qk_norm, qk_norm_reference))
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@kinds
@over
def test_fp32_equals_float64(kind: NormKind, per_head: bool, device: torch.device) -> None:
    tensors = [x.to(device) for x in _draw(7, SHAPES[0], per_head)]
    ours = _both(qk_norm, [x.float() for x in tensors], kind, SHAPES[0])
    for one, true in zip(ours, _both(qk_norm_reference, tensors, kind, SHAPES[0]), strict=True):
        assert_exact(one, true)


@kinds
@over
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32])
def test_bf16_is_no_worse_than_the_reference(
    kind: NormKind, per_head: bool, weight_dtype: torch.dtype
) -> None:
    """Weights in fp32 are what autocast leaves: q | k | v stays bf16 all the same."""
    qkv, *weights = _draw(300, SHAPES[0], per_head)
    halves = [qkv.bfloat16(), *(weight.to(weight_dtype) for weight in weights)]
    ours = _both(qk_norm, halves, kind, SHAPES[0])
    eager = _both(qk_norm_reference, halves, kind, SHAPES[0])
    truth = _both(qk_norm_reference, [x.double() for x in halves], kind, SHAPES[0])
    assert ours[0].dtype == torch.bfloat16
    for one, other, true in zip(ours, eager, truth, strict=True):
        assert_no_worse(one, other.to(one.dtype), true)


@pytest.mark.gpu
@kinds
@over
def test_real_shapes(kind: NormKind, per_head: bool) -> None:
    """Qwen 3 8B's heads."""
    shape = AttentionShape(32, 8, 128, 1.0)
    exact = [x.bfloat16().double().cuda() for x in _draw(4095, shape, per_head)]
    truth = _both(qk_norm_reference, exact, kind, shape)
    for one, true in zip(
        _both(qk_norm, [x.float() for x in exact], kind, shape), truth, strict=True
    ):
        assert relative_error(one, true) <= 1e-6
    halves = [x.bfloat16() for x in exact]
    ours, eager = (_both(f, halves, kind, shape) for f in (qk_norm, qk_norm_reference))
    for one, other, true in zip(ours, eager, truth, strict=True):
        assert_no_worse(one, other, true)


@over
def test_values_pass_through_bit_for_bit(per_head: bool) -> None:
    shape = SHAPES[0]
    tensors = _draw(9, shape, per_head)
    first_value = (shape.heads + shape.kv_heads) * shape.head_dim
    out, gradient, *_ = _both(qk_norm, tensors, NormKind.LLAMA, shape)
    assert torch.equal(out[:, first_value:], tensors[0][:, first_value:])
    upstream = torch.randn(
        out.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )
    assert torch.equal(gradient[:, first_value:], upstream[:, first_value:])


def test_it_works_in_place_and_leaves_the_weights_alone() -> None:
    qkv, q_weight, k_weight = _draw(9, SHAPES[0], True)
    before = qkv.clone(), q_weight.clone(), k_weight.clone()
    out = qk_norm(qkv, q_weight, k_weight, EPS, NormKind.LLAMA, SHAPES[0])
    assert out.data_ptr() == qkv.data_ptr()
    assert torch.equal(q_weight, before[1])
    assert torch.equal(k_weight, before[2])
    torch.testing.assert_close(
        qkv, qk_norm_reference(*before, EPS, NormKind.LLAMA, SHAPES[0]), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("trained", [0, 1])
def test_a_frozen_weight_gets_no_gradient(trained: int) -> None:
    qkv, *weights = _draw(9, SHAPES[0], True)
    weights[trained].requires_grad_()
    leaf = qkv.requires_grad_()
    out = qk_norm(leaf * 1, weights[0], weights[1], EPS, NormKind.LLAMA, SHAPES[0])
    out.square().sum().backward()
    assert weights[trained].grad is not None
    assert weights[1 - trained].grad is None


def test_a_producer_that_saved_the_overwritten_input_is_told_by_autograd() -> None:
    qkv, *weights = _draw(9, SHAPES[0], True)
    saved = qkv.requires_grad_().exp()  # exp keeps its result for backward
    out = qk_norm(saved, weights[0], weights[1], EPS, NormKind.LLAMA, SHAPES[0])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_retained_graph_gives_the_same_gradients_again() -> None:
    leaves = [x.requires_grad_() for x in _draw(9, SHAPES[0], True)]
    out = qk_norm(leaves[0] * 1, leaves[1], leaves[2], EPS, NormKind.GEMMA, SHAPES[0])
    loss = out.square().sum()
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    for one, other in zip(first, torch.autograd.grad(loss, leaves), strict=True):
        assert torch.equal(one, other)


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    leaves = [x.requires_grad_() for x in _draw(9, SHAPES[0], True)]
    out = qk_norm(leaves[0] * 1, leaves[1], leaves[2], EPS, NormKind.LLAMA, SHAPES[0])
    (gradient,) = torch.autograd.grad(out.square().sum(), leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_a_leaf_that_trains_is_not_overwritten() -> None:
    """Autograd knows that the input and the result are one tensor."""
    qkv, *weights = _draw(9, SHAPES[0], True)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        qk_norm(qkv.requires_grad_(), weights[0], weights[1], EPS, NormKind.LLAMA, SHAPES[0])
