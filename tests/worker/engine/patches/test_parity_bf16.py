"""bf16: against the fp32 truth, ours errs at most 1.5 times as much as stock bf16.

A tensor's error is the RMS over several random models and batches and over the layers: in one draw
a bias of 24 numbers may err by twice as much by chance, on either side.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch

from tunesmith_worker.engine.patches import patch

from .models import (
    FAMILIES,
    infinite_if_nan,
    make_model,
    packed_batch,
    relative_rms,
    scored_by_trl,
    with_lora,
)

Untyped = Any  # Any: transformers and PEFT are not typed

LENGTHS = (23, 1, 40, 9, 60, 33)
DRAWS = 3
DRAWS_WITH_BIASES = 10
"""A key bias's gradient is a sum that all but cancels: with few draws one bad one decides."""
BIASED = ("llama-bias", "qwen2", "qwen2-sliding")
LIMIT = 1.5


def _gradients(model: Untyped, batch: dict[str, Untyped], autocast: bool) -> dict[str, Untyped]:
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = model(**batch, fused_lm_head=True)
    output.loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return found | {"log_probs": output.log_probs.detach()}


def _lora(family: str, seed: int) -> tuple[Untyped, bool]:
    """PEFT's default: adapters in fp32 on a base in bf16."""
    model = with_lora(make_model(family, seed=seed, dtype=torch.bfloat16), seed=seed)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    return scored_by_trl(model), False


def _full(family: str, seed: int) -> tuple[Untyped, bool]:
    """fp32 weights under autocast."""
    return scored_by_trl(make_model(family, seed=seed)), True


def _squared_errors(
    family: str, make: Any, seed: int
) -> tuple[dict[str, float], dict[str, float]]:  # Any: one of the two above
    batch = packed_batch(LENGTHS, seed=seed)
    model, autocast = make(family, seed)
    stock = _gradients(model, batch, autocast)
    patched = patch(model)
    ours = _gradients(model, batch, autocast)
    patched.undo()
    truth = _gradients(model.float(), batch, False)
    return tuple(  # type: ignore[return-value]  # two of them
        {name: relative_rms(found[name], truth[name]) ** 2 for name in truth}
        for found in (ours, stock)
    )


def _over_layers(draws: Iterable[dict[str, float]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for draw in draws:
        for name, error in draw.items():
            total[re.sub(r"layers\.\d+", "layers.*", name)] += error  # type: ignore[assignment]  # counters count integers, they say
    return total


@pytest.mark.parametrize("make", [_lora, _full])
@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_errs_no_more_than_one_and_a_half_times_stock(family: str, make: Any) -> None:
    biased = family in BIASED and make is _full
    seeds = range(DRAWS_WITH_BIASES if biased else DRAWS)
    draws = [_squared_errors(family, make, seed) for seed in seeds]
    ours, stock = (_over_layers(draw[side] for draw in draws) for side in (0, 1))
    _assert_as_close(ours, stock)


def _assert_as_close(ours: Mapping[str, float], stock: Mapping[str, float]) -> None:
    """Squared errors by tensor."""
    quotients = {name: infinite_if_nan(ours[name] / stock[name]) for name in stock}
    worst = max(quotients, key=lambda name: quotients[name])
    assert quotients[worst] ** 0.5 <= LIMIT, worst
    assert (sum(ours.values()) / sum(stock.values())) ** 0.5 <= 1.25
    assert (max(ours.values()) / max(stock.values())) ** 0.5 <= LIMIT


@pytest.mark.parametrize("broken", ["ours", "stock"])
def test_an_error_that_is_no_number_is_too_large(broken: str) -> None:
    errors = {side: {"a": 1e-4, "b": 1e-4, "c": 1e-4} for side in ("ours", "stock")}
    _assert_as_close(**errors)
    errors[broken]["b"] = math.nan
    with pytest.raises(AssertionError, match=r"^b"):
        _assert_as_close(**errors)
