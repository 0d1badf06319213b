"""Rows that see a range of an earlier row before their own tokens: the dense reference, and rows
that carry a copy of that range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tunesmith_kernels.attention import segment_attention, segment_attention_reference
from tunesmith_kernels.segments import NO_PREFIX, AttentionShape, Segments

from .accuracy import assert_exact, assert_no_worse

SHAPE = AttentionShape(heads=4, kv_heads=2, head_dim=8, scale=0.3)
LENGTHS = [70, 1, 0, 129, 5, 3, 66]
PREFIXES = [NO_PREFIX, (0, 70), (0, 70), (0, 70), (10, 33), NO_PREFIX, (207, 208)]
"""Rows of a token, of none, of two tiles and one; a part of a row; a row that sees one token."""
TOKENS = sum(LENGTHS)

Both = tuple[torch.Tensor, torch.Tensor]


def _segments() -> Segments:
    return Segments.from_lengths(LENGTHS, prefixes=PREFIXES)


def _draw(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """qkv and RoPE's tables."""
    angles = torch.rand(TOKENS, 4) * 6
    return torch.randn(TOKENS, SHAPE.width, dtype=torch.float64).to(dtype), *_tables(angles)


def _tables(angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return angles.cos() * 1.2, angles.sin() * 1.2


def _both(function: Callable[..., torch.Tensor], qkv: torch.Tensor, *rest: Any) -> Both:
    """The output, and the gradient of qkv for an upstream that is the same for every call."""
    leaf = qkv.clone().requires_grad_()
    out = function(leaf * 1, *rest)
    draw = torch.Generator().manual_seed(5)
    out.backward(torch.randn(out.shape, generator=draw, dtype=torch.float64).to(out))
    assert leaf.grad is not None
    return out.detach(), leaf.grad


@pytest.mark.parametrize("window", [None, 1, 4, 64, 65, 71, 100, 500])
@pytest.mark.parametrize("softcap", [None, 0.8], ids=["plain", "softcap"])
def test_float64_equals_the_reference(window: int | None, softcap: float | None) -> None:
    """Windows that end within a prefix, at its edges, and before it."""
    shape = replace(SHAPE, window=window, softcap=softcap)
    qkv, *tables = _draw()
    found = _both(segment_attention, qkv, *tables, _segments(), shape)
    expected = _both(segment_attention_reference, qkv, *tables, _segments(), shape)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def _with_copies(of: torch.Tensor) -> tuple[torch.Tensor, Segments, torch.Tensor]:
    """Every row with its prefix before it, and which of those tokens are its own."""
    rows, own, end = [], [], 0
    for length, (first, after) in zip(LENGTHS, PREFIXES, strict=True):
        rows.append(torch.cat([of[first:after], of[end : end + length]]))
        own += [False] * (after - first) + [True] * length
        end += length
    return torch.cat(rows), Segments.from_lengths([len(row) for row in rows]), torch.tensor(own)


@pytest.mark.parametrize("window", [None, 7, 90])
@pytest.mark.parametrize("function", [segment_attention, segment_attention_reference])
def test_a_prefix_is_as_good_as_a_copy_of_it(
    function: Callable[..., torch.Tensor], window: int | None
) -> None:
    """Gradients of what is seen by several rows add up."""
    shape, (qkv, *_) = replace(SHAPE, window=window, softcap=2.0), _draw()
    leaf = qkv.clone().requires_grad_()
    copies, segments, own = _with_copies(leaf)
    expected = function(copies * 1, None, None, segments, shape)[own]
    upstream = torch.randn_like(expected)
    (wanted,) = torch.autograd.grad(expected, leaf, upstream)
    found = function(leaf * 1, None, None, _segments(), shape)
    (gradient,) = torch.autograd.grad(found, leaf, upstream)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-11)


def test_fp32_equals_float64() -> None:
    qkv, *tables = _draw()
    found = _both(segment_attention, qkv.float(), *tables, _segments(), SHAPE)
    truth = _both(segment_attention_reference, qkv, *tables, _segments(), SHAPE)
    for one, true in zip(found, truth, strict=True):
        assert_exact(one, true)


def _assert_bf16(shape: AttentionShape, segments: Segments, device: torch.device) -> None:
    qkv = torch.randn(segments.tokens, shape.width).bfloat16().to(device)
    tables = _tables(torch.rand(segments.tokens, shape.head_dim // 2).to(device) * 6)
    found = _both(segment_attention, qkv, *tables, segments, shape)
    eager = _both(segment_attention_reference, qkv, *tables, segments, shape)
    truth = _both(segment_attention_reference, qkv.double(), *tables, segments, shape)
    for one, other, true in zip(found, eager, truth, strict=True):
        assert_no_worse(one, other, true)


@pytest.mark.parametrize("window", [None, 40])
def test_bf16_is_no_worse_than_the_reference(window: int | None) -> None:
    """A prompt's keys and values sum the gradients of eight rows."""
    segments = Segments.from_lengths([90, *[20] * 8], prefixes=[NO_PREFIX, *[(0, 90)] * 8])
    _assert_bf16(replace(SHAPE, window=window), segments, torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 512])
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_bf16_on_real_shapes(window: int | None, softcap: float | None) -> None:
    device, shape = torch.device("cuda"), AttentionShape(32, 8, 128, 128**-0.5, window, softcap)
    lengths, prefixes = [700, 300, 1, 777, 1500, 64], [NO_PREFIX, *[(0, 700)] * 3] + [NO_PREFIX] * 2
    prefixes[5] = (1778, 3278)
    _assert_bf16(shape, Segments.from_lengths(lengths, device, prefixes), device)


def test_siblings_are_bit_for_bit_untouched_by_one_another() -> None:
    """Set a row to other values or NaN. Outputs and gradients of unrelated rows keep their bits."""
    qkv, *tables = _draw(torch.float32)
    before = _both(segment_attention, qkv, *tables, _segments(), SHAPE)
    changed, others = slice(71, 200), [*range(70, 71), *range(200, TOKENS)]
    for content in (torch.randn_like(qkv[changed]) * 100, torch.full_like(qkv[changed], torch.nan)):
        other = qkv.clone()
        other[changed] = content
        after = _both(segment_attention, other, *tables, _segments(), SHAPE)
        assert torch.equal(before[0][:70], after[0][:70])  # the prompt sees no completion ...
        assert not torch.equal(before[1][:70], after[1][:70])  # ... whose gradients it sums
        for one, two in zip(before, after, strict=True):
            assert torch.equal(one[others], two[others])
            assert not torch.equal(one[changed], two[changed])


def test_rows_without_a_prefix_have_the_bits_they_have_alone() -> None:
    qkv, *tables = _draw(torch.float32)
    plain = Segments.from_lengths(LENGTHS)
    none = Segments.from_lengths(LENGTHS, prefixes=[NO_PREFIX] * len(LENGTHS))
    expected = _both(segment_attention, qkv, *tables, plain, SHAPE)
    for one, other in zip(
        _both(segment_attention, qkv, *tables, none, SHAPE), expected, strict=True
    ):
        assert torch.equal(one, other)
