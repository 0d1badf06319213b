"""The closed form against the tensor bytes that a real step holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.worker.engine.patches.models import FAMILIES, make_model
from tunesmith_schema import Precision
from tunesmith_worker.engine.memory import shapes
from tunesmith_worker.engine.memory.estimate import Correction, Policy, layer_kept, predict
from tunesmith_worker.engine.memory.parameter_sizes import read_tuning
from tunesmith_worker.engine.optimizers.choose import optimizer_for
from tunesmith_worker.engine.optimizers.fresh_state import state_bytes

from .memory_models import Measured, llama

SETTINGS: dict[str, dict[str, Any]] = {  # Any: arguments of Measured
    "lora": {},
    "lora-recompute": {"keep": 0},
    "lora-mixed": {"keep": 2},
    "lora-dropout": {"dropout": 0.1},
    "lora-bf16": {"bf16": True},
    "full": {"full": True},
    "full-recompute": {"full": True, "keep": 0},
    "full-bf16": {"full": True, "bf16": True},
    "token-rows": {"tokens": [5, 9]},
    "token-rows-untied": {"tokens": [5, 9], "tied": False},
    "whole-embedding": {"whole": True, "tied": False},
    "stock-layers-recompute": {"ours": {"attention", "loss"}, "keep": 0},
    "stock-layers-bf16": {"ours": {"attention", "loss"}, "keep": 0, "bf16": True},
    "stock-lora": {"ours": False},
    "stock-full-recompute": {"ours": False, "full": True, "keep": 0},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_peak_is_known_to_ten_percent_and_a_layers_share_to_one(setting: str) -> None:
    """Without any correction."""
    torch.manual_seed(0)
    given = dict(SETTINGS[setting])
    m = Measured(llama(tied=given.pop("tied", True)), rows=4, length=256, **given)
    predicted = predict(m.shape, m.tuning, m.batch, m.engine, m.policy)
    # The probe has no optimiser, and counts what comes on top of what is resident.
    assert predicted.peak - predicted.resident == pytest.approx(m.probe.peak, rel=0.10)
    whole = layer_kept(m.shape, m.tuning, m.batch, m.engine)
    one_input = m.batch.tokens * m.shape.hidden * m.tuning.stream_bytes
    # The first layer of a stock model with adapters: less, as its input needs no gradient.
    for layer, kept in list(enumerate(m.probe.kept))[1:]:
        expected = whole if m.policy.mode_of(layer, m.shape.layers) == "keep" else one_input
        assert kept == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("full", [False, True], ids=["lora", "full"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_layer_keeps_is_known_for_every_family(family: str, full: bool) -> None:
    m = Measured(make_model(family), full=full)
    expected = layer_kept(m.shape, m.tuning, m.batch, m.engine)
    assert max(m.probe.kept) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_configuration_tells_how_many_parameters_there_are(family: str) -> None:
    model = make_model(family)
    counted = sum(p.numel() for p in model.parameters())
    assert shapes.shape_of(model.config).parameters == pytest.approx(counted, rel=0.04)


@pytest.mark.parametrize("precision", ["fp32", "bf16_split_master", "bf16_sr8", "bf16"])
def test_the_optimisers_state_is_known_to_the_percent(precision: Precision) -> None:
    model = llama() if precision == "fp32" else llama().to(torch.bfloat16)
    tuning = read_tuning(model, shapes.shape_of(model.config), full=True, precision=precision)
    kind, given = optimizer_for(precision, full=True, learning_rate=1e-3, seed=0) or (
        torch.optim.AdamW,
        {"lr": 1e-3, "fused": True},
    )
    optimizer = kind(model.parameters(), **given)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    predicted = tuning.optimizer_bytes * tuning.trained
    assert predicted == pytest.approx(state_bytes(optimizer), rel=0.01)


def test_a_plan_from_numbers_alone_equals_one_from_the_model() -> None:
    """What an estimate without a model says is what the run says."""
    from tunesmith_schema import PROJECTIONS, LoraRecipe

    m = Measured(llama())
    estimate = shapes.lora(m.shape, LoraRecipe(r=8), list(PROJECTIONS), bf16=False)
    assert estimate.trained == m.tuning.trained
    assert estimate.adapter == m.tuning.adapter
    assert estimate.weights == pytest.approx(m.tuning.weights, rel=0.01)
    assert dict(estimate.ranks) == dict(m.tuning.ranks)
    full = Measured(llama(), full=True)
    assert shapes.full(full.shape, bf16=False).trained == pytest.approx(
        full.tuning.trained, rel=0.01
    )


def test_a_probe_leaves_no_trace() -> None:
    torch.manual_seed(5)
    model = llama()
    before = {name: p.clone() for name, p in model.named_parameters()}
    torch.manual_seed(6)
    expected = torch.rand(3)
    torch.manual_seed(6)
    m = Measured(model, full=True)
    torch.manual_seed(6)
    assert m.probe.peak > 0
    assert torch.equal(torch.rand(3), expected)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert not model._forward_hooks
    assert not any(layer._forward_hooks for layer in model.base_model.layers)


def test_every_byte_has_a_name_and_offload_moves_bytes_to_the_host() -> None:
    m = Measured(llama())
    kept, offloaded = (
        predict(m.shape, m.tuning, m.batch, m.engine, policy)
        for policy in (Policy(keep=4), Policy(keep=1, offload=3))
    )
    assert kept.peak == sum(kept.items.values())
    assert offloaded.pinned_host == 3 * m.batch.tokens * m.shape.hidden * 4
    assert offloaded.peak < kept.peak
    assert sum(offloaded.by_layer) < sum(kept.by_layer)


@pytest.mark.parametrize(("tokens", "block"), [(170, 1 << 17), (171, 1 << 18)])
def test_pinned_memory_is_predicted_in_the_blocks_that_torch_pins(tokens: int, block: int) -> None:
    """Their size is a power of two: 4,096 rows of 1,536 bf16 values take 16 MiB, not 12."""
    m = Measured(llama())
    assert m.shape.hidden * m.tuning.stream_bytes == 768
    batch, engine = replace(m.batch, tokens=tokens), replace(m.engine, on_gpu=True)
    predicted = predict(m.shape, m.tuning, batch, engine, Policy(keep=1, offload=3))
    assert predicted.pinned_host == 3 * block


def test_a_correction_scales_its_own_part_only() -> None:
    m = Measured(llama())
    plain = predict(m.shape, m.tuning, m.batch, m.engine, m.policy)
    more = predict(
        m.shape, m.tuning, m.batch, m.engine, m.policy, Correction(kept=1.5, workspace=1.0)
    )
    assert more.items["activations"] == pytest.approx(1.5 * plain.items["activations"], rel=0.01)
    assert more.items["weights"] == plain.items["weights"]
