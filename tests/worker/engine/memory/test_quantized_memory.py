"""The closed form on quantised bases."""

from __future__ import annotations

import tempfile
from typing import Any, Literal

import pytest

from tunesmith_worker.engine.memory.estimate import layer_kept, predict
from tunesmith_worker.engine.memory.parameter_sizes import storage_bytes

SETTINGS: dict[str, dict[str, Any]] = {  # Any: arguments of Measured
    "nf4": {},
    "nf4-recompute": {"keep": 0},
    "nf4-bf16": {"bf16": True},
    "int8": {},
    "int8-recompute": {"keep": 0},
}


@pytest.fixture(scope="module")
def figures() -> dict[str, dict[str, float]]:
    return {
        name: _figures("nf4" if name.startswith("nf4") else "int8", one)
        for name, one in SETTINGS.items()
    }


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_peak_is_within_ten_percent_of_what_is_held(
    figures: dict[str, dict[str, float]], setting: str
) -> None:
    one = figures[setting]
    assert one["predicted"] == pytest.approx(one["held"], rel=0.10)


@pytest.mark.parametrize("setting", ["nf4", "int8"])
def test_weights_count_their_scales(figures: dict[str, dict[str, float]], setting: str) -> None:
    """4 bits, an 8-bit scale for 64 and an fp32 one for 256 of those; 8 bits and a scale a row."""
    one = figures[setting]
    assert one["kept"] == pytest.approx(one["expected_kept"], rel=0.01)
    assert one["base_bytes"] == pytest.approx(one["expected_base_bytes"], rel=0.01)
    assert one["without_scales"] < 0.995 * one["base_bytes"]


def _figures(kind: Literal["nf4", "int8"], given: dict[str, Any]) -> dict[str, float]:
    import torch
    import transformers

    from tunesmith_worker.engine.model.quantization import fix_nf4_layout, quantization_config

    from .memory_models import Measured, llama

    torch.manual_seed(0)
    dtype = torch.bfloat16 if given.get("bf16") else torch.float32
    with tempfile.TemporaryDirectory() as folder:
        llama().save_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=quantization_config(kind, dtype), dtype=dtype
        )
    fix_nf4_layout(model)
    m = Measured(model, rows=4, length=256, quantized=True, **given)
    predicted = predict(m.shape, m.tuning, m.batch, m.engine, m.policy)
    linear = m.shape.layers * m.shape.layer_parameters
    rows = m.shape.layers * (2 * m.shape.hidden + m.shape.q + 2 * m.shape.kv)
    rows += m.shape.layers * 2 * m.shape.intermediate
    others = m.shape.embedding_parameters + (2 * m.shape.layers + 1) * m.shape.hidden
    tables = 7 * m.shape.layers * 4 * (16 + 256 + 1)  # a module's codes, and its scales' offset
    nf4 = linear * (0.5 + 1 / 64 + 4 / 64 / 256) + tables
    each = nf4 if kind == "nf4" else linear + 4 * rows
    plain = storage_bytes([*model.parameters(), *model.buffers()]) - m.tuning.adapter
    return {
        "predicted": predicted.peak - predicted.resident,
        "held": m.probe.peak,
        "kept": m.probe.kept[1],
        "expected_kept": layer_kept(m.shape, m.tuning, m.batch, m.engine),
        "base_bytes": m.tuning.weights - others * dtype.itemsize,
        "expected_base_bytes": each,
        "without_scales": plain - others * dtype.itemsize,
    }
