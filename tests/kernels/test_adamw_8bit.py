"""8-bit moments hold what an AdamW step needs, and rounding weights loses nothing in the mean."""

from __future__ import annotations

import pytest
import torch

from tunesmith_kernels.adamw import AdamW
from tunesmith_kernels.adamw_8bit import adamw_8bit_, adamw_8bit_reference_, round_stochastically
from tunesmith_kernels.moment_codes import (
    BLOCK,
    Moments,
    decode_m,
    decode_v,
    encode_m,
    encode_v,
    num_blocks,
)

SPEC = AdamW(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1, step=2)


def empty_moments(size: int, device: torch.device | str = "cpu") -> Moments:
    blocks = num_blocks(size)
    return Moments(
        m_code=torch.zeros(size, dtype=torch.int8, device=device),
        m_scale=torch.zeros(blocks, device=device),
        v_code=torch.zeros(size, dtype=torch.uint8, device=device),
        v_scale=torch.zeros(blocks, device=device),
    )


def decoded(moments: Moments) -> tuple[torch.Tensor, torch.Tensor]:
    """m and v, [blocks x BLOCK] fp32 on the CPU."""
    m, v, scratch = torch.zeros(3, len(moments.m_scale) * BLOCK)
    decode_m(moments.m_code.cpu(), moments.m_scale.cpu(), m, scratch)
    decode_v(moments.v_code.cpu(), moments.v_scale.cpu(), v)
    return m, v


def test_codes_come_back_as_the_formulas_say() -> None:
    m = torch.randn(3 * BLOCK) * torch.logspace(-6, 2, 3 * BLOCK)
    v = m.square()
    moments = empty_moments(3 * BLOCK)
    encode_m(m.clone(), moments.m_code, moments.m_scale, torch.empty_like(m))
    encode_v(v.clone(), moments.v_code, moments.v_scale, torch.full_like(v, 0.5))
    assert torch.equal(moments.m_scale, m.abs().view(-1, BLOCK).amax(1))
    m_back, v_back = decoded(moments)
    # Half a code, in the root that the codes are linear in.
    scale_m = moments.m_scale.repeat_interleave(BLOCK)
    scale_v = moments.v_scale.repeat_interleave(BLOCK)
    roots = ((m.abs() / scale_m).sqrt() - (m_back.abs() / scale_m).sqrt()).abs()
    assert roots.max() <= 0.501 / 127
    roots = ((v / scale_v).pow(0.25) - (v_back / scale_v).pow(0.25)).abs()
    assert roots.max() <= 1.001 / 255, "half a code, and a whole one below the smallest"
    assert torch.equal(m_back.sign() * (m_back != 0), m.sign() * (m_back != 0))


def test_what_is_not_zero_in_v_stays_so() -> None:
    """A v of 0 beside a moment that is not would be a step without bound."""
    v = torch.full((BLOCK,), 1e-30)
    v[0], v[1] = 1.0, 0.0
    moments = empty_moments(BLOCK)
    encode_v(v, moments.v_code, moments.v_scale, torch.zeros(BLOCK))
    assert moments.v_code[:3].tolist() == [255, 0, 1]


@pytest.mark.parametrize("value", [0.0, 1e-42, 1e-45])
def test_blocks_of_nothing_stay_nothing(value: float) -> None:
    moments = empty_moments(BLOCK)
    encode_m(torch.full((BLOCK,), value), moments.m_code, moments.m_scale, torch.empty(BLOCK))
    encode_v(torch.full((BLOCK,), value), moments.v_code, moments.v_scale, torch.rand(BLOCK))
    assert all(not (one != 0).any() for one in decoded(moments))


def test_v_is_kept_in_the_mean() -> None:
    """A change of a thousandth is less than half a code; it must not be lost."""
    v = torch.full((BLOCK,), 0.3)
    v[0] = 1.0
    moments = empty_moments(BLOCK)
    codes = torch.zeros(BLOCK)
    for _ in range(400):
        encode_v(v.clone(), moments.v_code, moments.v_scale, torch.rand(BLOCK))
        codes += moments.v_code
    mean, exact = float(codes[1:].mean() / 400), 255 * 0.3**0.25
    assert abs(mean - exact) < 3 * 0.5 / (400 * 255) ** 0.5
    assert moments.v_code[1:].unique().tolist() == [int(exact), int(exact) + 1]


def test_a_weight_is_rounded_to_a_neighbour_and_right_in_the_mean() -> None:
    x = torch.full((200_000,), 1.0 + 2**-7 * 0.3)
    random = torch.randint(-(2**31), 2**31 - 1, x.shape, dtype=torch.int32)
    for sign in (1.0, -1.0):
        rounded = round_stochastically(x * sign, random).float() * sign
        assert rounded.unique().tolist() == [1.0, 1.0 + 2**-7]
        up = (rounded > 1.0).double().mean().item()
        assert abs(up - 0.3) < 3 * (0.3 * 0.7 / len(x)) ** 0.5


@pytest.mark.parametrize("size", [1, 256, 1300, 2501])
@pytest.mark.usefixtures("small_tiles")
def test_a_step_equals_the_reference(size: int, device: torch.device) -> None:
    """The draws differ: weights may be one bf16 apart and codes of v one code, no more."""
    weight, grad = torch.randn(2, size).bfloat16()
    moments, expected = empty_moments(size, device), empty_moments(size)
    exact = weight.clone()
    ours, grads = weight.to(device), grad.to(device)
    random = torch.randint(-(2**31), 2**31 - 1, (size,), dtype=torch.int32)
    adamw_8bit_(ours, moments, grads, SPEC, 7)
    adamw_8bit_reference_(exact, expected, grad, SPEC, random)
    torch.testing.assert_close(moments.m_scale.cpu(), expected.m_scale, rtol=1e-6, atol=0)
    torch.testing.assert_close(moments.v_scale.cpu(), expected.v_scale, rtol=1e-6, atol=0)
    for actual, wanted in (
        (moments.m_code, expected.m_code),
        (moments.v_code, expected.v_code),
        (ours.view(torch.int16), exact.view(torch.int16)),
    ):
        assert (actual.cpu().int() - wanted.int()).abs().max() <= 1


@pytest.mark.gpu
def test_a_step_on_a_real_weight() -> None:
    """Llama 3.1 8B's gate projection and one element more: a last block of one."""
    size = 14_336 * 4096 + 1
    exact, grad = torch.randn(2, size).bfloat16()
    moments, expected = empty_moments(size, "cuda"), empty_moments(size)
    weight = exact.cuda()
    random = torch.randint(-(2**31), 2**31 - 1, (size,), dtype=torch.int32)
    adamw_8bit_(weight, moments, grad.cuda(), SPEC, 7)
    adamw_8bit_reference_(exact, expected, grad, SPEC, random)
    ours = weight.cpu()
    torch.testing.assert_close(moments.m_scale.cpu(), expected.m_scale, rtol=1e-6, atol=0)
    torch.testing.assert_close(moments.v_scale.cpu(), expected.v_scale, rtol=1e-6, atol=0)
    for actual, wanted in ((moments.m_code, expected.m_code), (moments.v_code, expected.v_code)):
        assert (actual.cpu().int() - wanted.int()).abs().max() <= 1
    apart = (ours.view(torch.int16).int() - exact.view(torch.int16).int()).abs()
    near_zero = exact.abs() < 1e-6  # where weight and update cancel
    assert apart[~near_zero].max() <= 1
    assert (ours - exact)[near_zero].abs().sum() <= 1e-8 * near_zero.sum()


def test_the_seed_decides_all_draws(device: torch.device) -> None:
    weight, grad = torch.randn(2, 5000, device=device).bfloat16()
    found = []
    for seed in (1, 1, 2):
        one, moments = weight.clone(), empty_moments(5000, device)
        for step in range(3):
            adamw_8bit_(one, moments, grad, SPEC, seed + 10 * step)
        found.append((one, moments.v_code))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert not torch.equal(found[0][0], found[2][0])
    assert not torch.equal(found[0][1], found[2][1])


def test_draws_differ_from_element_to_element(device: torch.device) -> None:
    """Equal weights with equal gradients go up in their share, not all at once."""
    weight = torch.ones(4096, dtype=torch.bfloat16, device=device)
    grad = -torch.ones_like(weight)
    spec = AdamW(lr=2**-7 / 4, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, step=1)
    adamw_8bit_(weight, empty_moments(4096, device), grad, spec, 5)
    up = (weight > 1.0).double().mean().item()
    assert abs(up - 0.25) < 4 * (0.25 * 0.75 / 4096) ** 0.5
    assert (weight[:-1] != weight[1:]).sum() > 1000


def test_nothing_is_fine(device: torch.device) -> None:
    nothing = torch.empty(0, dtype=torch.bfloat16, device=device)
    adamw_8bit_(nothing, empty_moments(0, device), nothing, SPEC, 0)


def test_wrong_tensors_are_named() -> None:
    weight = torch.zeros(300, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="m_code must be"):
        adamw_8bit_(weight, empty_moments(299), weight, SPEC, 0)
    with pytest.raises(ValueError, match="weight must be"):
        adamw_8bit_(weight.float(), empty_moments(300), weight, SPEC, 0)
