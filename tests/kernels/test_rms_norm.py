"""RMSNorm: its roundings are transformers', and both paths equal it in value and gradient."""

from __future__ import annotations

import pytest
import torch
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from tunesmith_kernels.rms_norm import (
    NormKind,
    rms_norm,
    rms_norm_apply,
    rms_norm_backward,
    rms_norm_forward,
    rms_norm_reference,
)

from .accuracy import assert_exact, assert_no_worse

EPS = 1e-6
MODULES = {
    NormKind.LLAMA: LlamaRMSNorm,
    NormKind.GEMMA: Gemma3RMSNorm,
    NormKind.OLMO: Olmo2RMSNorm,
}
SHAPES = [(1, 1), (1, 48), (7, 100), (40, 48), (3, 384), (2, 1023), (2, 3, 5, 6)]
REAL = [
    pytest.param(shape, marks=pytest.mark.gpu)
    for shape in [(8192, 4096), (4095, 2560), (4096, 32, 128), (513, 16_384)]
]

both_kinds_of_weight = pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
kinds = pytest.mark.parametrize("kind", list(NormKind))


@kinds
@both_kinds_of_weight
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reference_is_the_module_of_transformers(
    kind: NormKind, dtype: torch.dtype, weight_dtype: torch.dtype
) -> None:
    x, weight = torch.randn(5, 64).to(dtype), torch.randn(64).to(weight_dtype)
    module = MODULES[kind](64, eps=EPS)
    module.weight = torch.nn.Parameter(weight)
    expected = module(x)
    actual = rms_norm_reference(x, weight, EPS, kind)
    assert actual.dtype == expected.dtype
    assert torch.equal(actual, expected)


@kinds
@both_kinds_of_weight
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_output_has_the_dtype_of_transformers(
    kind: NormKind, dtype: torch.dtype, weight_dtype: torch.dtype, device: torch.device
) -> None:
    x, weight = torch.randn(2, 8).to(device, dtype), torch.randn(8).to(device, weight_dtype)
    expected = rms_norm_reference(x, weight, EPS, kind)
    assert rms_norm(x, weight, EPS, kind).dtype == expected.dtype


def test_llama_rounds_before_the_weight_is_multiplied(device: torch.device) -> None:
    """A fp32 weight of ones leaves values that bf16 can hold, as transformers' module does."""
    x, ones = torch.randn(7, 100).to(device).bfloat16(), torch.ones(100).to(device)
    y = rms_norm(x, ones, EPS, NormKind.LLAMA)
    assert y.dtype == torch.float32
    assert torch.equal(y, y.bfloat16().float())


def gradients(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, kind: NormKind, *, ours: bool
) -> tuple[torch.Tensor, ...]:
    """y, dx, dweight."""
    x, weight = (t.detach().clone().requires_grad_() for t in (x, weight))
    y = (rms_norm if ours else rms_norm_reference)(x, weight, EPS, kind)
    return (y.detach(), *torch.autograd.grad(y, (x, weight), dy.to(y.dtype)))


@kinds
@pytest.mark.parametrize("shape", [*SHAPES, *REAL])
def test_fp32_equals_float64_in_value_and_gradients(
    shape: tuple[int, ...], kind: NormKind, device: torch.device
) -> None:
    x, dy, weight = torch.randn(shape), torch.randn(shape), torch.randn(shape[-1])
    x, dy, weight = x.to(device), dy.to(device), weight.to(device)
    truths = gradients(x.double(), weight.double(), dy, kind, ours=False)
    y, dx, dweight = gradients(x, weight, dy, kind, ours=True)
    assert_exact(y, truths[0])
    assert_exact(dx, truths[1])
    # dweight sums over the rows; of the thousands in a real shape it is compared on its own scale.
    num_rows = x.numel() // shape[-1]
    scale = num_rows**0.5 if num_rows > 500 else 1.0
    assert_exact(dweight / scale, truths[2] / scale)


@kinds
@both_kinds_of_weight
def test_bf16_is_no_worse_than_transformers(
    kind: NormKind, weight_dtype: torch.dtype, device: torch.device
) -> None:
    x, dy = torch.randn(64, 100).to(device).bfloat16(), torch.randn(64, 100).to(device).bfloat16()
    weight = (1 + 0.2 * torch.randn(100)).to(device, weight_dtype)
    truths = gradients(x.float(), weight.float(), dy.float(), kind, ours=False)
    eager = gradients(x, weight, dy, kind, ours=False)
    for actual, stock, truth in zip(
        gradients(x, weight, dy, kind, ours=True), eager, truths, strict=True
    ):
        assert_no_worse(actual, stock, truth)


@pytest.mark.usefixtures("small_tiles")
@kinds
def test_tiles_do_not_change_the_result(kind: NormKind) -> None:
    x, dy, weight = torch.randn(11, 48), torch.randn(11, 48), torch.randn(48)
    truths = gradients(x.double(), weight.double(), dy, kind, ours=False)
    for actual, truth in zip(gradients(x, weight, dy, kind, ours=True), truths, strict=True):
        assert_exact(actual, truth)


@kinds
def test_heads_inside_a_wider_buffer_are_normalised_where_they_lie(
    kind: NormKind, device: torch.device
) -> None:
    buffer = torch.randn(9, 7, 24).to(device)
    before = buffer.clone()
    heads, weight, dy = buffer[:, 2:5], torch.randn(24).to(device), torch.randn(9, 3, 24).to(device)
    y, rstd = rms_norm_forward(heads, weight, EPS, kind)
    dx, dweight = rms_norm_backward(dy, heads, weight, rstd, kind, weight_grad=True)
    truths = gradients(heads.double(), weight.double(), dy, kind, ours=False)
    assert rstd.shape == (9, 3, 1)
    assert dweight is not None
    for actual, truth in zip((y, dx, dweight), truths, strict=True):
        assert_exact(actual, truth)
    assert torch.equal(buffer, before)


@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_y_is_rebuilt_bit_for_bit(kind: NormKind, dtype: torch.dtype, device: torch.device) -> None:
    x, weight = torch.randn(7, 100).to(device, dtype), torch.randn(100).to(device, dtype)
    y, rstd = rms_norm_forward(x, weight, EPS, kind)
    assert torch.equal(rms_norm_apply(x, weight, rstd, kind), y)


@kinds
def test_a_row_of_zeros_gives_zeros_and_finite_gradients(
    kind: NormKind, device: torch.device
) -> None:
    x, weight = torch.zeros(3, 48).to(device), torch.randn(48).to(device)
    y, dx, dweight = gradients(x, weight, torch.randn(3, 48).to(device), kind, ours=True)
    assert not y.any()
    assert dx.isfinite().all()
    assert not dweight.any()


def test_a_frozen_weight_gets_no_gradient(device: torch.device) -> None:
    x = torch.randn(3, 48).to(device).requires_grad_()
    weight = torch.randn(48).to(device)
    torch.autograd.backward([rms_norm(x, weight, EPS)], [torch.ones_like(x)])
    assert x.grad is not None
    assert weight.grad is None


def test_no_rows_and_columns_out_of_order(device: torch.device) -> None:
    weight = torch.randn(6).to(device)
    y, dx, dweight = gradients(
        torch.randn(0, 6).to(device),
        weight,
        torch.randn(0, 6).to(device),
        NormKind.GEMMA,
        ours=True,
    )
    assert y.shape == dx.shape == (0, 6)
    assert not dweight.any()
    x = torch.randn(6, 4).to(device).T
    assert_exact(rms_norm(x, weight, EPS), rms_norm_reference(x.double(), weight, EPS))


def test_a_weight_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got \[2, 8\] and \[4\]"):
        rms_norm(torch.randn(2, 8), torch.randn(4), EPS)
