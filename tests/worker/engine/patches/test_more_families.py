"""Families that share only some mechanisms with Llama: other norms, rotated pairs, experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import transformers

from tunesmith_kernels.segments import Segments
from tunesmith_worker.engine.patches import patch
from tunesmith_worker.engine.rollout.architecture import read_architecture
from tunesmith_worker.engine.rollout.protocol import UnsupportedModel

from .models import (
    COMMON,
    LAYER_TYPES,
    assert_same_gradients,
    equal_bits,
    model_of,
    packed_batch,
    run_step,
    scored_by_trl,
    with_lora,
)

Untyped = Any  # Any: transformers and PEFT are not typed

BOTH = {"attention_block": 3, "mlp_block": 3, "loss": 1}
ATTENTION = {"attention_block": 3, "loss": 1}

MORE: dict[str, tuple[Callable[[], Untyped], dict[str, int]]] = {
    "seed-oss": (
        lambda: transformers.SeedOssConfig(
            **COMMON, head_dim=16, residual_dropout=0.0, attention_dropout=0.0, attention_bias=True
        ),
        BOTH,
    ),
    "ministral-3": (lambda: transformers.Ministral3Config(**COMMON, head_dim=12), BOTH),
    "exaone-4": (
        lambda: transformers.Exaone4Config(
            **COMMON, sliding_window=6, layer_types=LAYER_TYPES, sliding_window_pattern=3
        ),
        BOTH,
    ),
    "exaone-4-full": (
        lambda: transformers.Exaone4Config(
            **COMMON,
            sliding_window=None,
            sliding_window_pattern=4,
            layer_types=["full_attention"] * 3,
        ),
        BOTH,
    ),
    "ernie-4.5": (lambda: transformers.Ernie4_5Config(**COMMON, use_bias=True), BOTH),
    "helium": (lambda: transformers.HeliumConfig(**COMMON, head_dim=12), BOTH),
    "glm": (lambda: transformers.GlmConfig(**COMMON, head_dim=16, attention_bias=True), BOTH),
    "glm-4": (lambda: transformers.Glm4Config(**COMMON, head_dim=16, attention_bias=True), BOTH),
    "cohere": (lambda: transformers.CohereConfig(**COMMON, attention_bias=True), BOTH),
    "cohere-2": (
        lambda: transformers.Cohere2Config(
            **COMMON, sliding_window=6, layer_types=LAYER_TYPES, head_dim=12
        ),
        BOTH,
    ),
    "olmo": (lambda: transformers.OlmoConfig(**COMMON), BOTH),
    "hunyuan": (lambda: transformers.HunYuanDenseV1Config(**COMMON, head_dim=12), BOTH),
    "arcee": (lambda: transformers.ArceeConfig(**COMMON), ATTENTION),
    "mixtral": (
        lambda: transformers.MixtralConfig(
            **COMMON, num_local_experts=4, num_experts_per_tok=2, sliding_window=7
        ),
        ATTENTION,
    ),
    "qwen3-moe": (
        lambda: transformers.Qwen3MoeConfig(
            **COMMON, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, head_dim=16
        ),
        ATTENTION,
    ),
    "starcoder-2": (
        lambda: transformers.Starcoder2Config(
            **COMMON, sliding_window=7, residual_dropout=0.0, embedding_dropout=0.0
        ),
        ATTENTION,
    ),
    "jais-2": (lambda: transformers.Jais2Config(**COMMON), ATTENTION),
    "nemotron": (lambda: transformers.NemotronConfig(**COMMON, head_dim=12), ATTENTION),
}
DECODES = {"seed-oss", "exaone-4", "exaone-4-full"}


@pytest.mark.parametrize("tuning", ["lora", "full"])
@pytest.mark.parametrize("family", MORE)
def test_loss_and_gradients_equal_stock(family: str, tuning: str) -> None:
    make, counts = MORE[family]
    model, batch = model_of(make()), packed_batch()
    model = scored_by_trl(with_lora(model) if tuning == "lora" else model)
    stock = run_step(model, batch)
    patched = patch(model)
    assert patched.report.counts == counts
    ours = run_step(model, batch)
    assert ours[0].loss.item() == pytest.approx(stock[0].loss.item(), rel=1e-6)
    assert_same_gradients(ours[1], stock[1], limit=2e-5)
    patched.undo()
    assert equal_bits(run_step(model, batch)[1], stock[1])


@pytest.mark.parametrize("family", MORE)
def test_a_rollout_runs_or_names_the_family(family: str) -> None:
    model = model_of(MORE[family][0]())
    if family in DECODES:
        assert len(read_architecture(model).layers) == 3
        return
    with pytest.raises(UnsupportedModel, match=type(model.model.layers[0]).__name__):
        read_architecture(model)


def test_queries_scaled_in_long_rows_stay_stock() -> None:
    config = transformers.Ministral3Config(**COMMON, head_dim=12)
    config.rope_parameters |= {"original_max_position_embeddings": 16}
    model, batch = scored_by_trl(model_of(config)), packed_batch()
    assert config.rope_parameters["llama_4_scaling_beta"]
    stock = run_step(model, batch)
    patched = patch(model)
    ours = run_step(model, batch)
    assert_same_gradients(ours[1], stock[1], limit=2e-5)
    half = patched.layers[0]._attention
    assert not half.computes(Segments.from_lengths([23, 1, 40, 9]))
    assert half.computes(Segments.from_lengths([9, 7]))
