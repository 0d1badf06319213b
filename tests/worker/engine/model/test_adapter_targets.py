"""`lora.target_modules: "auto"`: every linear layer of attention and MLP, by any name."""

from __future__ import annotations

from typing import Any

import peft
import pytest
import torch
import transformers
from benchmarks.models.configs import small_config

from tunesmith_schema import PROJECTIONS, Choice, LoraRecipe, Plan, Recipe
from tunesmith_worker.engine.model.adapter_targets import find_targets
from tunesmith_worker.engine.model.adapters import attach_lora
from tunesmith_worker.rundir.plan import Choices

Untyped = Any  # Any: transformers and peft are not typed

ADDED: dict[str, list[str]] = {
    "glm4": ["gate_up_proj"],
    "phi3": ["gate_up_proj", "qkv_proj"],
    "starcoder2": ["c_fc", "c_proj"],
    "opt": ["fc1", "fc2", "out_proj"],
    "gptj": ["fc_in", "fc_out", "out_proj"],
    "phi": ["dense", "fc1", "fc2"],
    "mpt": ["Wqkv", "out_proj"],
    "minicpm3": ["kv_a_proj_with_mqa", "kv_b_proj", "q_a_proj", "q_b_proj"],
    "qwen3_5_text": ["in_proj_a", "in_proj_b", "in_proj_qkv", "in_proj_z", "out_proj"],
    "gemma3n_text": ["linear_left", "linear_right", "per_layer_input_gate", "per_layer_projection"],
    "bamba": ["in_proj"],
}
"""Names that "auto" adds to the usual projections, by model type."""
NOT_ADAPTED = {
    "starcoder2": {"lm_head"},
    "gemma3n_text": {
        *("prediction_coefs", "correction_coefs", "modality_router"),
        *("per_layer_model_projection", "0", "1", "2"),  # outside the decoder layers
    },
    "bamba": {"out_proj"},  # the scan reads its weight
}


def empty(model_type: str) -> Untyped:
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(small_config(model_type, 384))


def attached(model_type: str) -> Untyped:
    with torch.device("meta"):
        return attach_lora(empty(model_type), Recipe(lora=LoraRecipe(r=2)), Choices())


@pytest.mark.parametrize("model_type", ADDED)
def test_all_linear_layers_of_decoder_layers_are_adapted(model_type: str) -> None:
    targets, _ = find_targets(empty(model_type), LoraRecipe(), Choices(), ())
    assert [name for name in targets if name not in PROJECTIONS] == ADDED[model_type]
    left_out = {
        name.rpartition(".")[2]
        for name, module in attached(model_type).named_modules()
        if isinstance(module, torch.nn.Linear) and "lora_" not in name and "base_layer" not in name
    }
    assert left_out - {"lm_head"} <= NOT_ADAPTED.get(model_type, set())


@pytest.mark.parametrize(
    "model_type", ["llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "olmo2"]
)
def test_a_llama_like_model_keeps_its_seven_projections(model_type: str) -> None:
    targets, excluded = find_targets(empty(model_type), LoraRecipe(), Choices(), ())
    assert (targets, excluded) == (list(PROJECTIONS), None)


@pytest.mark.parametrize("model_type", ["qwen2_moe", "phimoe", "llama4_text"])
def test_routers_of_experts_are_not_adapted(model_type: str) -> None:
    layers = [
        name
        for name, m in attached(model_type).named_modules()
        if isinstance(m, peft.tuners.lora.LoraLayer)
    ]
    assert layers
    assert not any(name.endswith(("router", "wg", ".gate", "expert_gate")) for name in layers)


def test_a_resumed_run_keeps_the_targets_of_its_plan() -> None:
    choice = Choice(name="lora.target_modules", value=["q_proj", "v_proj"], reason="earlier")
    choices = Choices(Plan(made_for="0" * 64, choices=[choice]))
    targets, excluded = find_targets(empty("glm4"), LoraRecipe(), choices, ())
    assert (targets, excluded) == (["q_proj", "v_proj"], None)
