"""Rotary embedding: transformers' rotation, in place or not, whole heads or part of them."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb as apply_to_part

from tunesmith_kernels.rope import rope, rope_, rope_reference, rope_table

from .accuracy import assert_exact, assert_no_worse

# T, Hq, Hk, D, R; the last of them has more heads than one block of the Triton kernel holds
SHAPES = [
    (1, 1, 1, 2, 2),
    (7, 3, 1, 48, 48),
    (9, 5, 2, 40, 20),
    (3, 2, 2, 7, 6),
    (2, 40, 8, 128, 128),
]
REAL = [
    pytest.param(shape, marks=pytest.mark.gpu)
    for shape in [(8192, 32, 8, 128, 128), (4095, 24, 8, 96, 72)]
]


def angles(num_rows: int, rotated: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A table [T, R/2] whose rows all differ; cos and sin carry a scale, as YaRN's do."""
    angle = torch.randn(num_rows, rotated // 2)
    return (1.3 * angle.cos()).to(device), (1.3 * angle.sin()).to(device)


@pytest.mark.parametrize("shape", [*SHAPES, *REAL])
@pytest.mark.parametrize("by_position", [False, True])
def test_fp32_equals_float64_in_value_and_gradients(
    shape: tuple[int, ...], by_position: bool, device: torch.device
) -> None:
    num_rows, q_heads, k_heads, size, rotated = shape
    cos, sin = angles(num_rows + 5, rotated, device)
    positions = torch.randint(num_rows + 5, (num_rows,)).to(device) if by_position else None
    if positions is None:
        cos, sin = cos[:num_rows], sin[:num_rows]
    inputs = [torch.randn(num_rows, n, size).to(device) for n in (q_heads, k_heads)]
    upstream = [torch.randn_like(x) for x in inputs]

    leaves = [x.clone().requires_grad_() for x in inputs]
    outs = rope(leaves[0], leaves[1], cos, sin, positions)
    grads = torch.autograd.grad(outs, leaves, upstream)

    for x, dy, out, grad in zip(inputs, upstream, outs, grads, strict=True):
        leaf = x.double().requires_grad_()
        truth = rope_reference(leaf, cos.double(), sin.double(), positions)
        assert_exact(out.detach(), truth.detach())
        assert_exact(grad, torch.autograd.grad(truth, leaf, dy.double())[0])


def test_it_is_the_rotation_of_transformers(device: torch.device) -> None:
    q, k = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 9, 16)  # [B, H, T, D]
    for rotated, stock in ((16, apply_rotary_pos_emb), (12, apply_to_part)):
        angle = torch.randn(2, 9, rotated // 2)
        cos, sin = (torch.cat([f, f], -1) for f in (angle.cos(), angle.sin()))
        flat_q, flat_k = (x.transpose(1, 2).flatten(0, 1).to(device) for x in (q, k))
        table = rope_table(cos.to(device), sin.to(device))
        assert all(t.shape == (18, rotated // 2) and t.is_contiguous() for t in table)
        rotated_pair = rope(flat_q, flat_k, table[0], table[1])
        for ours, theirs in zip(rotated_pair, stock(q, k, cos, sin), strict=True):
            assert_exact(ours.cpu(), theirs.transpose(1, 2).flatten(0, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_place_touches_its_heads_alone(dtype: torch.dtype, device: torch.device) -> None:
    """Queries and keys side by side in one buffer, values behind them."""
    buffer = torch.randn(9, 7, 20).to(device, dtype)
    before = buffer.clone()
    cos, sin = angles(9, 12, device)
    q_and_k = buffer[:, 1:6]
    assert rope_(q_and_k, cos, sin) is q_and_k
    eager = rope_reference(before[:, 1:6], cos, sin)
    if dtype == torch.float32:
        assert_exact(q_and_k, eager)
    else:
        assert_no_worse(q_and_k, eager, rope_reference(before[:, 1:6].double(), cos, sin))
    untouched = torch.ones_like(buffer, dtype=torch.bool)
    untouched[:, 1:6, :12] = False
    assert torch.equal(buffer[untouched], before[untouched])


def test_the_inverse_is_the_gradient_and_undoes_an_unscaled_rotation(device: torch.device) -> None:
    x, dy = torch.randn(9, 5, 12).to(device), torch.randn(9, 5, 12).to(device)
    cos, sin = angles(9, 12, device)
    leaf = x.double().requires_grad_()
    truth = torch.autograd.grad(rope_reference(leaf, cos, sin), leaf, dy.double())[0]
    assert_exact(rope_(dy.clone(), cos, sin, inverse=True), truth)
    there = rope_(x.clone(), cos / 1.3, sin / 1.3)
    assert_exact(rope_(there, cos / 1.3, sin / 1.3, inverse=True), x)


def test_positions_restart_with_each_packed_row(device: torch.device) -> None:
    x = torch.randn(7, 2, 8).to(device)
    cos, sin = angles(4, 8, device)
    positions = torch.tensor([0, 1, 2, 3, 0, 1, 2]).to(device)
    together = rope_(x.clone(), cos, sin, positions=positions)
    for part in (slice(0, 4), slice(4, 7)):
        length = part.stop - part.start
        alone = rope_(x[part].clone(), cos[:length], sin[:length])
        assert torch.equal(together[part], alone)


@pytest.mark.usefixtures("small_tiles")
def test_tiles_do_not_change_the_result() -> None:
    x, positions = torch.randn(11, 5, 20), torch.randint(6, (11,))
    cos, sin = angles(6, 12, x.device)
    truth = rope_reference(x, cos, sin, positions)
    assert_exact(rope_(x.clone(), cos, sin, positions=positions), truth)


def test_no_rows_and_columns_out_of_order(device: torch.device) -> None:
    cos, sin = angles(3, 4, device)
    q, k = rope(torch.zeros(0, 2, 4).to(device), torch.zeros(0, 1, 4).to(device), cos[:0], sin[:0])
    assert q.shape == (0, 2, 4)
    assert k.shape == (0, 1, 4)
    turned = torch.randn(3, 4, 2).to(device).transpose(1, 2)
    for out in rope(turned, turned, cos, sin):
        assert_exact(out, rope_reference(turned, cos, sin))
    with pytest.raises(ValueError, match="contiguous"):
        rope_(turned, cos, sin)


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, cos = torch.randn(3, 2, 8), torch.randn(3, 4)
    with pytest.raises(ValueError, match=r"got \[3, 2, 8\], \[3, 5\]"):
        rope_(x, torch.randn(3, 5), torch.randn(3, 5))
    with pytest.raises(ValueError, match=r"\[2, 4\]"):
        rope_(x, cos[:2], cos[:2])
    with pytest.raises(ValueError, match=r"positions \[2\]"):
        rope_(x, cos, cos, positions=torch.zeros(2, dtype=torch.long))
    with pytest.raises(IndexError):
        rope_(x, cos, cos, positions=torch.tensor([0, 1, 3]))
