"""Reordered pairs: rotated halves of the new order are rotated pairs of the old one."""

from __future__ import annotations

import pytest
import torch

from tunesmith_kernels.rope import rope_reference
from tunesmith_kernels.rope_pairs import halves_of_pairs, split_pairs, split_pairs_reference
from tunesmith_kernels.segments import AttentionShape

SHAPES = [AttentionShape(4, 2, 8, 1.0), AttentionShape(3, 3, 12, 1.0)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=["gqa", "mha"])
rotaries = pytest.mark.parametrize("rotary", [4, 8])


@shapes
@rotaries
def test_values_and_gradients_are_the_references(shape: AttentionShape, rotary: int) -> None:
    x = torch.randn(5, shape.width, dtype=torch.float64)
    upstream = torch.randn_like(x)
    results = []
    for function in (split_pairs, split_pairs_reference):
        leaf = x.clone().requires_grad_()
        out = function(leaf * 1, rotary, shape)
        out.backward(upstream)
        results.append((out.detach(), leaf.grad))
    for ours, theirs in zip(*results, strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours, theirs)


@shapes
def test_scores_equal_those_of_rotated_pairs(shape: AttentionShape) -> None:
    rotary, rows = 4, 7
    angles = torch.randn(rows, rotary // 2, dtype=torch.float64)
    qkv = torch.randn(rows, shape.width, dtype=torch.float64)
    heads = qkv.unflatten(1, (-1, shape.head_dim))
    pairs = torch.view_as_complex(heads[..., :rotary].unflatten(-1, (-1, 2)).contiguous())
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)[:, None])
    expected = torch.cat([turned.flatten(-2), heads[..., rotary:]], -1)
    ordered = split_pairs(qkv.clone(), rotary, shape).unflatten(1, (-1, shape.head_dim))
    ours = rope_reference(ordered, angles.cos(), angles.sin())
    for q in range(shape.heads):
        scores, same = (x[:, q] @ x[:, shape.heads].T for x in (expected, ours))
        torch.testing.assert_close(same, scores, rtol=1e-12, atol=1e-12)
    v = shape.rotated
    assert torch.equal(ordered[:, v:], heads[:, v:])


def test_a_table_with_repeated_values_gets_halves() -> None:
    table = torch.arange(4.0).repeat_interleave(2)[None]
    assert halves_of_pairs(table).tolist() == [[0.0, 1.0, 2.0, 3.0] * 2]
