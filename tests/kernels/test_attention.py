"""Attention over rows that stand end to end: the dense reference, row by row, in value and
gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tunesmith_kernels.attention import segment_attention, segment_attention_reference
from tunesmith_kernels.attention_varlen import why_not_varlen
from tunesmith_kernels.segments import AttentionShape, Segments

from .accuracy import assert_exact, assert_no_worse

GQA = AttentionShape(heads=4, kv_heads=2, head_dim=8, scale=0.3)
MHA = AttentionShape(heads=3, kv_heads=3, head_dim=5, scale=5**-0.5)
MQA = AttentionShape(heads=5, kv_heads=1, head_dim=16, scale=0.25)
RAGGED = [1, 70, 1, 129, 5]  # one token; a tile and a bit; two tiles and one token
LONG = [300]

Tables = tuple[torch.Tensor | None, torch.Tensor | None]

shapes = pytest.mark.parametrize("shape", [GQA, MHA, MQA], ids=["gqa", "mha", "mqa"])


def _draw(tokens: int, shape: AttentionShape, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(tokens, shape.width, dtype=torch.float64).to(dtype)


def _tables(tokens: int, half: int | None, device: torch.device | None = None) -> Tables:
    if half is None:
        return None, None
    angles = torch.rand(tokens, half).to(device) * 6
    return angles.cos() * 1.2, angles.sin() * 1.2  # a scale other than 1, as YaRN's


def _both(
    function: Any,  # the operation or its reference
    qkv: torch.Tensor,
    tables: Tables,
    segments: Segments,
    shape: AttentionShape,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output, and the gradient of qkv for an upstream that is the same for every call."""
    leaf = qkv.clone().requires_grad_()
    produced = leaf * 1  # the operation overwrites what it is given
    out = function(produced, *tables, segments, shape)
    upstream = torch.randn(
        out.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )
    out.backward(upstream.to(out))
    assert leaf.grad is not None
    return out.detach(), leaf.grad


@shapes
@pytest.mark.parametrize("lengths", [[1], [7, 1], RAGGED, LONG], ids=str)
@pytest.mark.parametrize("half", [None, 1, 2], ids=["no-rope", "rope-of-2", "rope-of-4"])
def test_float64_equals_the_reference(
    shape: AttentionShape, lengths: list[int], half: int | None
) -> None:
    segments, tables = Segments.from_lengths(lengths), _tables(sum(lengths), half)
    qkv = _draw(sum(lengths), shape)
    out, gradient = _both(segment_attention, qkv, tables, segments, shape)
    expected, expected_gradient = _both(segment_attention_reference, qkv, tables, segments, shape)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("window", [1, 2, 63, 64, 65, 130, 300, 1000])
@pytest.mark.parametrize("softcap", [None, 0.8], ids=["plain", "softcap"])
def test_a_window_and_a_soft_cap_equal_the_reference(window: int, softcap: float | None) -> None:
    """Windows below, at and above a tile's 64 queries and a row's length."""
    shape = replace(GQA, window=window, softcap=softcap)
    for lengths in (RAGGED, LONG):
        segments, tables = Segments.from_lengths(lengths), _tables(sum(lengths), 4)
        qkv = _draw(sum(lengths), shape)
        out, gradient = _both(segment_attention, qkv, tables, segments, shape)
        wanted = _both(segment_attention_reference, qkv, tables, segments, shape)
        torch.testing.assert_close(out, wanted[0], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(gradient, wanted[1], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("lengths", [[1, 9, 2], [3, 1, 75]], ids=str)
def test_fp32_equals_float64(lengths: list[int], device: torch.device) -> None:
    """On the Triton path RoPE is the kernel's."""
    tokens = sum(lengths)
    segments = Segments.from_lengths(lengths, device)
    tables = _tables(tokens, 2, device)
    qkv = _draw(tokens, GQA).to(device)
    out, gradient = _both(segment_attention, qkv.float(), tables, segments, GQA)
    truth, truth_gradient = _both(segment_attention_reference, qkv, tables, segments, GQA)
    assert_exact(out, truth)
    assert_exact(gradient, truth_gradient)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 512])
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_bf16_on_real_shapes(window: int | None, softcap: float | None) -> None:
    shape = AttentionShape(32, 8, 128, 128**-0.5, window, softcap)
    device, lengths = torch.device("cuda"), [700, 1, 2048, 1347]
    segments = Segments.from_lengths(lengths, device)
    tables = _tables(4096, 64, device)
    qkv = _draw(4096, shape).bfloat16().to(device)
    ours = _both(segment_attention, qkv, tables, segments, shape)
    eager = _both(segment_attention_reference, qkv, tables, segments, shape)
    truth = _both(segment_attention_reference, qkv.double(), tables, segments, shape)
    for one, other, true in zip(ours, eager, truth, strict=True):
        assert_no_worse(one, other, true)


@pytest.mark.parametrize("softcap", [None, 2.0], ids=["plain", "softcap"])
@pytest.mark.parametrize("window", [None, 40])
def test_bf16_is_no_worse_than_the_reference(softcap: float | None, window: int | None) -> None:
    shape = replace(GQA, softcap=softcap, window=window)
    segments, tables = Segments.from_lengths([150, 1, 60]), _tables(211, 4)
    qkv = _draw(211, shape).bfloat16()
    ours = _both(segment_attention, qkv, tables, segments, shape)
    eager = _both(segment_attention_reference, qkv, tables, segments, shape)
    truth = _both(segment_attention_reference, qkv.double(), tables, segments, shape)
    for one, other, true in zip(ours, eager, truth, strict=True):
        assert_no_worse(one, other, true)


@pytest.mark.parametrize("window", [None, 3, 100])
def test_a_row_is_bit_for_bit_untouched_by_the_others(window: int | None) -> None:
    """Perturb one row, even to NaN: output and gradient of every other row stay the same bits."""
    shape = replace(GQA, window=window)
    lengths, changed = [70, 1, 130, 9], slice(71, 201)
    segments, tables = Segments.from_lengths(lengths), _tables(210, 4)
    qkv = _draw(210, shape, torch.float32)
    before = _both(segment_attention, qkv, tables, segments, shape)
    for content in (torch.randn_like(qkv[changed]) * 100, torch.full_like(qkv[changed], torch.nan)):
        other = qkv.clone()
        other[changed] = content
        after = _both(segment_attention, other, tables, segments, shape)
        for x, y in zip(before, after, strict=True):
            assert torch.equal(x[:71], y[:71])
            assert torch.equal(x[201:], y[201:])
            assert not torch.equal(x[changed], y[changed])


def test_a_token_never_sees_a_later_one() -> None:
    segments, qkv = Segments.from_lengths([140]), _draw(140, GQA, torch.float32)
    before, _ = _both(segment_attention, qkv, (None, None), segments, GQA)
    qkv[100:] = torch.randn_like(qkv[100:]) * 50
    after, _ = _both(segment_attention, qkv, (None, None), segments, GQA)
    assert torch.equal(before[:100], after[:100])


def test_a_row_is_the_same_wherever_it_stands() -> None:
    row = _draw(90, GQA, torch.float32)
    alone, _ = _both(segment_attention, row, (None, None), Segments.from_lengths([90]), GQA)
    packed = torch.cat([_draw(37, GQA, torch.float32), row, _draw(5, GQA, torch.float32)])
    segments = Segments.from_lengths([37, 90, 5])
    among, _ = _both(segment_attention, packed, (None, None), segments, GQA)
    assert torch.equal(alone, among[37:127])


def test_two_batches_of_different_boundaries_share_nothing() -> None:
    """What is kept between calls (masks of tiles) must not depend on where rows begin."""
    shape, qkv = replace(GQA, window=20), _draw(120, GQA)
    for lengths in ([120], [50, 70], [1] * 120, [119, 1], [50, 70], [120]):
        segments = Segments.from_lengths(lengths)
        out, _ = _both(segment_attention, qkv, (None, None), segments, shape)
        expected = segment_attention_reference(qkv, None, None, segments, shape)
        torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-12)


def test_rows_and_heads_may_lie_apart() -> None:
    wide = _draw(60, GQA).repeat_interleave(2, 0)[::2]
    assert not wide.is_contiguous()
    segments = Segments.from_lengths([60])
    out = segment_attention(wide, None, None, segments, GQA)
    expected = segment_attention_reference(wide.contiguous(), None, None, segments, GQA)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-12)


def test_no_tokens_give_nothing() -> None:
    out, gradient = _both(
        segment_attention, _draw(0, GQA), (None, None), Segments.from_lengths([]), GQA
    )
    assert out.shape == (0, GQA.heads * GQA.head_dim)
    assert gradient.shape == (0, GQA.width)


def test_without_rope_the_input_is_left_as_it_is() -> None:
    qkv = _draw(30, GQA)
    before = qkv.clone()
    segment_attention(qkv, None, None, Segments.from_lengths([30]), GQA)
    assert torch.equal(qkv, before)


def test_a_producer_that_saved_the_overwritten_input_is_told_by_autograd() -> None:
    leaf = _draw(10, GQA).requires_grad_()
    saved = leaf.exp()  # exp keeps its result for backward
    out = segment_attention(saved, *_tables(10, 4), Segments.from_lengths([10]), GQA)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_retained_graph_gives_the_same_gradient_again() -> None:
    leaf = _draw(80, GQA).requires_grad_()
    out = segment_attention(leaf * 1, *_tables(80, 4), Segments.from_lengths([30, 50]), GQA).sum()
    first = torch.autograd.grad(out, leaf, retain_graph=True)[0]
    second = torch.autograd.grad(out, leaf)[0]
    assert torch.equal(first, second)


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    leaf = _draw(10, GQA).requires_grad_()
    out = segment_attention(leaf * 1, None, None, Segments.from_lengths([10]), GQA)
    (gradient,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_the_tiles_make_all_they_need_on_the_device_of_their_input() -> None:
    """Tensors without memory: one that was made elsewhere meets them with an error."""
    shape, device = replace(GQA, window=70, softcap=2.0), torch.device("meta")
    qkv = _draw(200, shape, torch.float32).to(device).requires_grad_()
    tables = _tables(200, 4, device)
    out = segment_attention(qkv * 1, *tables, Segments.from_lengths([150, 50]), shape)
    out.sum().backward()
    assert qkv.grad is not None
    assert qkv.grad.device == device


def test_what_varlen_kernels_cannot_do_goes_to_the_tiles() -> None:
    half = torch.bfloat16
    usual = AttentionShape(32, 8, 128, 128**-0.5)
    assert why_not_varlen(half, usual) is None
    assert why_not_varlen(torch.float16, replace(usual, window=512)) is None
    assert why_not_varlen(torch.float32, usual)
    assert why_not_varlen(half, replace(usual, softcap=50.0))
    assert why_not_varlen(half, replace(usual, head_dim=12))
    assert why_not_varlen(half, replace(usual, head_dim=512))


def test_no_score_matrix_is_kept() -> None:
    """What a 3,000 token row keeps for backward is its q | k | v, not its 9 million scores."""
    kept: list[int] = []
    leaf = _draw(3000, GQA, torch.float32).requires_grad_()

    def pack(x: torch.Tensor) -> torch.Tensor:
        kept.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        segment_attention(leaf * 1, *_tables(3000, 4), Segments.from_lengths([3000]), GQA)
    assert sum(kept) <= 3000 * (GQA.width + 8) + 1  # `* 1` keeps a scalar
