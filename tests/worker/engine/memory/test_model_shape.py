"""Sizes of models whose configuration lacks them: every model gets a memory plan."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from benchmarks.models.configs import small_config

from tests.worker.engine.patches.models import make_model
from tunesmith_worker.engine.memory.model_shape import count_shape, read_shape
from tunesmith_worker.engine.memory.shapes import shape_of

LACKING = (
    *("gpt2", "bloom", "opt", "falcon", "gptj", "mpt", "gemma3n_text", "qwen3_5_moe_text"),
    *("mamba", "gemma4_text", "bart", "xlnet", "dbrx", "rwkv"),
)
"""Model types without an `intermediate_size`, without heads, or with sizes that differ by layer."""


def small(model_type: str) -> Any:  # Any: transformers is not typed
    with torch.device("meta"):
        config = small_config(model_type, 384)
        return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("model_type", LACKING)
def test_sizes_that_the_configuration_lacks_are_counted(model_type: str) -> None:
    model = small(model_type)
    with pytest.raises((AttributeError, RuntimeError, TypeError)):
        shape_of(model.config)
    shape = read_shape(model)
    assert (shape.layers, shape.hidden, shape.vocabulary) == (shape.layers, 32, 384)
    assert 2 <= shape.layers <= 4
    assert shape.q in (32, 64)


def test_sizes_in_the_configuration_are_read() -> None:
    model = make_model("qwen3")
    assert read_shape(model) == shape_of(model.config)


def test_counted_weights_of_a_llama_equal_its_configuration() -> None:
    model = make_model("llama")
    counted, read = count_shape(model), shape_of(model.config)
    assert counted.layer_parameters == pytest.approx(read.layer_parameters, rel=0.01)
    assert (counted.layers, counted.hidden, counted.q, counted.kv) == (
        *(read.layers, read.hidden, read.q, read.kv),
    )


def test_experts_count_by_the_share_that_a_token_uses() -> None:
    model = small("qwen3_5_moe_text")
    block = model.model.layers[0].mlp.experts
    experts = sum(weight.numel() for weight in block.parameters())
    every = sum(p.numel() for p in model.model.layers[0].parameters() if p.dim() >= 2)
    shape = count_shape(model)
    assert model.config.num_experts == 4
    assert model.config.num_experts_per_tok == 2
    assert shape.layer_parameters < every - experts / 4
