"""SwiGLU and GEGLU: transformers' MLP in value and gradient, in place or not."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from transformers.activations import ACT2FN

from tunesmith_kernels.gated_activation import (
    Activation,
    gated,
    gated_backward,
    gated_forward,
    gated_reference,
)

from .accuracy import assert_exact, assert_no_worse, relative_error

pytestmark = pytest.mark.filterwarnings(
    "ignore:overflow encountered in exp:RuntimeWarning"  # the interpreter's sigmoid, going to 0
)
STOCK = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
SHAPES = [(1, 1), (7, 48), (3, 100), (2, 1030)]
REAL = [
    pytest.param(shape, marks=pytest.mark.gpu)
    for shape in [(8192, 14_336), (4095, 8960), (1, 21_504)]
]
activations = pytest.mark.parametrize("activation", get_args(Activation))


def stock(gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """transformers' MLP, between its projections."""
    gate, up = gate_up.chunk(2, -1)
    product: torch.Tensor = ACT2FN[STOCK[activation]](gate) * up
    return product


@activations
@pytest.mark.parametrize("shape", [*SHAPES, *REAL])
def test_fp32_equals_float64_in_value_and_gradient(
    shape: tuple[int, int], activation: Activation, device: torch.device
) -> None:
    num_rows, size = shape
    gate_up = torch.randn(num_rows, 2 * size).to(device)
    d_out = torch.randn(num_rows, size).to(device)
    leaf, truth_leaf = gate_up.clone().requires_grad_(), gate_up.double().requires_grad_()
    out, truth = gated(leaf, activation), gated_reference(truth_leaf, activation)
    (truth_grad,) = torch.autograd.grad(truth, truth_leaf, d_out.double())
    assert_exact(out.detach(), truth.detach())
    assert_exact(torch.autograd.grad(out, leaf, d_out)[0], truth_grad)
    again, d_gate_up = gated_backward(gate_up, d_out, activation)
    assert_exact(again, truth.detach())
    assert_exact(d_gate_up, truth_grad)


@activations
def test_fp32_equals_transformers(activation: Activation, device: torch.device) -> None:
    gate_up = (2 * torch.randn(7, 96)).to(device)
    leaves = [gate_up.clone().requires_grad_() for _ in range(2)]
    outs = gated(leaves[0], activation), stock(leaves[1], activation)
    grads = [torch.autograd.grad(o.sum(), x)[0] for o, x in zip(outs, leaves, strict=True)]
    assert relative_error(*outs) <= 1e-6
    assert relative_error(*grads) <= 1e-6


@activations
def test_bf16_is_no_worse_than_transformers(activation: Activation, device: torch.device) -> None:
    gate_up = (2 * torch.randn(40, 96)).to(device).bfloat16()
    d_out = torch.randn(40, 48).to(device).bfloat16()
    results = []
    for function, dtype in ((gated, None), (stock, None), (gated_reference, torch.float32)):
        leaf = gate_up.to(dtype or gate_up.dtype).requires_grad_()
        out = function(leaf, activation)
        results.append((out.detach(), *torch.autograd.grad(out, leaf, d_out.to(out.dtype))))
    for actual, eager, truth in zip(*results, strict=True):
        assert_no_worse(actual, eager, truth)


@activations
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_place_is_the_same_over_the_gradient_alone(
    activation: Activation, dtype: torch.dtype, device: torch.device
) -> None:
    gate_up, d_out = torch.randn(7, 96).to(device, dtype), torch.randn(7, 48).to(device, dtype)
    kept = gate_up.clone(), d_out.clone()
    expected = gated_backward(gate_up, d_out, activation)
    assert torch.equal(gate_up, kept[0])
    assert torch.equal(d_out, kept[1])
    out, d_gate_up = gated_backward(gate_up, d_out, activation, in_place=True)
    assert out is d_out
    assert torch.equal(gate_up, kept[0])
    assert torch.equal(out, expected[0])
    assert torch.equal(d_gate_up, expected[1])


@activations
def test_rows_of_a_wider_buffer_are_read_and_written_where_they_lie(
    activation: Activation, device: torch.device
) -> None:
    wider, d_wider = torch.randn(5, 30).to(device), torch.randn(5, 20).to(device)
    gate_up, d_out = wider[:, 3:17], d_wider[:, 5:12]
    before = d_wider.clone()
    truth, truth_grad = gated_backward(gate_up.contiguous(), d_out.contiguous(), activation)
    assert torch.equal(gated_forward(gate_up, activation), truth)
    _, d_gate_up = gated_backward(gate_up, d_out, activation, in_place=True)
    assert torch.equal(d_gate_up, truth_grad)
    assert torch.equal(d_out, truth)
    assert torch.equal(d_wider[:, :5], before[:, :5])
    assert torch.equal(d_wider[:, 12:], before[:, 12:])


@activations
def test_far_gates_saturate(activation: Activation, device: torch.device) -> None:
    """act(g) is g or 0 far from 0, and its slope 1 or 0: no overflow turns into NaN."""
    gate_up = torch.tensor([[-1e4, -200.0, 0.0, 200.0, 1e4] + [1.0] * 5]).to(device)
    out, d_gate_up = gated_backward(gate_up, torch.ones(1, 5).to(device), activation)
    expected = torch.tensor([0.0, 0.0, 0.0, 200.0, 1e4])
    assert_exact(out[0].cpu(), expected)
    assert_exact(d_gate_up[0].cpu(), torch.cat([torch.tensor([0, 0, 0.5, 1, 1]), expected]))


@pytest.mark.usefixtures("small_tiles")
@activations
def test_tiles_do_not_change_the_result(activation: Activation) -> None:
    gate_up, d_out = torch.randn(11, 96), torch.randn(11, 48)
    leaf = gate_up.double().requires_grad_()
    truth = gated_reference(leaf, activation)
    out, d_gate_up = gated_backward(gate_up, d_out, activation, in_place=False)
    assert_exact(gated_forward(gate_up, activation), truth.detach())
    assert_exact(out, truth.detach())
    assert_exact(d_gate_up, torch.autograd.grad(truth, leaf, d_out.double())[0])


def test_no_rows_and_columns_out_of_order(device: torch.device) -> None:
    assert gated(torch.zeros(0, 8).to(device), "silu").shape == (0, 4)
    turned = torch.randn(8, 3).to(device).T
    assert_exact(gated_forward(turned, "silu"), gated_reference(turned, "silu"))
    with pytest.raises(ValueError, match="contiguous"):
        gated_backward(turned, torch.ones(4, 3).to(device).T, "silu", in_place=True)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[T, 2I\], got \[3, 5\]"):
        gated(torch.zeros(3, 5), "silu")
    with pytest.raises(ValueError, match="got 'relu'"):
        gated(torch.zeros(3, 4), "relu")  # type: ignore[arg-type]  # what a caller might try
    with pytest.raises(ValueError, match=r"got \[3, 4\]"):
        gated_backward(torch.zeros(3, 4), torch.zeros(3, 4), "silu")
