"""Dropout on an adapter's input: PEFT's masks under the same random state, and their gradients."""

from __future__ import annotations

import peft
import pytest
import torch

from tunesmith_kernels.lora import Adapter, Norm, Projection, lora_linear
from tunesmith_kernels.rms_norm import NormKind, rms_norm_reference

RANKS = (4, 7)


class _Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(24, 10, bias=False)
        self.up = torch.nn.Linear(24, 10, bias=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.gate(x), self.up(x)], -1)


def _peft_model(p: float, dtype: torch.dtype) -> peft.PeftModel:
    config = peft.LoraConfig(
        target_modules=["gate", "up"],
        lora_dropout=p,
        rank_pattern={"gate": RANKS[0], "up": RANKS[1]},
        use_rslora=True,
        lora_alpha=6,
    )
    model = peft.get_peft_model(_Two().to(dtype), config, autocast_adapter_dtype=False)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def _projections(model: peft.PeftModel, p: float) -> list[Projection]:
    result = []
    for name in ("gate", "up"):
        layer = getattr(model.base_model.model, name)
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        adapter = Adapter(a, b, layer.scaling["default"], p)
        result.append(Projection(layer.weight, layer.base_layer.bias, adapter))
    return result


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("normed", [False, True])
def test_peft_draws_the_same_masks_in_the_same_order(
    p: float, dtype: torch.dtype, normed: bool
) -> None:
    model = _peft_model(p, dtype)
    x = torch.randn(2, 9, 24, dtype=dtype, requires_grad=True)
    weight = torch.rand(24, dtype=dtype) + 0.5
    parameters = [x, *(q for q in model.parameters() if q.requires_grad)]
    upstream = torch.randn(2, 9, 20, dtype=dtype)

    torch.manual_seed(11)
    stock = model(rms_norm_reference(x, weight, 1e-5) if normed else x)
    state = torch.get_rng_state()
    expected = [stock, *torch.autograd.grad(stock, parameters, upstream)]

    torch.manual_seed(11)
    norm = Norm(weight, 1e-5, NormKind.LLAMA) if normed else None
    ours = lora_linear(x, _projections(model, p), norm=norm)
    assert torch.equal(torch.get_rng_state(), state), "what comes next draws other numbers"
    actual = [ours, *torch.autograd.grad(ours, parameters, upstream)]

    tolerance = 1e-9 if dtype == torch.float64 else 2e-5
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_the_mask_of_a_bf16_input_is_that_of_fp32() -> None:
    """PEFT casts the input to its fp32 adapters before it draws; ours draws in the input's own
    dtype."""
    torch.manual_seed(11)
    wide = torch.nn.functional.dropout(torch.ones(1, 50, 24), 0.3)
    torch.manual_seed(11)
    x = torch.eye(24, dtype=torch.bfloat16).repeat(3, 1)[:50]
    a = torch.eye(24, dtype=torch.bfloat16, requires_grad=True)
    adapter = Adapter(a, torch.eye(24, dtype=torch.bfloat16), 1.0, 0.3)
    out = lora_linear(x, [Projection(torch.zeros(24, 24, dtype=torch.bfloat16), None, adapter)])
    assert torch.equal(out != 0, (x * wide[0]) != 0)


def test_what_stays_is_scaled_up_exactly_in_half_precision() -> None:
    """1 / 0.9 in bf16 is 0.16 % too small, for every token and step alike."""
    x = torch.rand(4000, 24).add(0.5).bfloat16()
    eye, nothing = torch.eye(24, dtype=torch.bfloat16), torch.zeros(24, 24, dtype=torch.bfloat16)
    out = lora_linear(x, [Projection(nothing, None, Adapter(eye, eye, 1.0, 0.1))]).double()
    kept = out != 0
    assert float(out[kept].sum() / x.double()[kept].sum()) == pytest.approx(1 / 0.9, rel=3e-4)


def test_no_dropout_draws_nothing() -> None:
    model = _peft_model(0.0, torch.float32)
    before = torch.get_rng_state()
    lora_linear(torch.randn(3, 24, generator=torch.Generator()), _projections(model, 0.0))
    assert torch.equal(torch.get_rng_state(), before)


def test_everything_dropped_leaves_the_base_alone() -> None:
    model = _peft_model(0.0, torch.float64)
    x = torch.randn(5, 24, dtype=torch.float64, requires_grad=True)
    projections = _projections(model, 1.0)
    out = lora_linear(x, projections)
    weights = [p.weight for p in projections if isinstance(p.weight, torch.Tensor)]
    biases = [p.bias for p in projections]
    base = torch.cat(
        [torch.nn.functional.linear(x, w, b) for w, b in zip(weights, biases, strict=True)], -1
    )
    torch.testing.assert_close(out, base, rtol=1e-12, atol=1e-12)
    adapters = [t for p in projections if p.adapter for t in (p.adapter.a, p.adapter.b)]
    for gradient in torch.autograd.grad(out.sum(), adapters):
        assert not gradient.any()
