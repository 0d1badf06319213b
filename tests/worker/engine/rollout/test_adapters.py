"""No adapter is left out, whatever its kind: perturbed, the log-probs move to the training ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from tests.worker.engine.patches.models import (
    COMMON,
    infinite_if_nan,
    make_model,
    model_of,
    relative_rms,
    with_lora,
)
from tunesmith_worker.engine.model.quantization import fix_nf4_layout, quantization_config
from tunesmith_worker.engine.patches import patch
from tunesmith_worker.engine.rollout import Completion, UnsupportedModel, plan_rollout

from .rollouts import (
    LAYOUTS,
    assert_logprobs_equal_a_forward,
    engine_of,
    forward_logprobs,
    greedy,
    make_prompts,
)

Untyped = Any  # Any: transformers and peft are not typed

PROMPTS = make_prompts(7, 12)
SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.mark.parametrize("weights", LAYOUTS)
def test_each_adapter_of_each_layer_moves_the_rollout_as_it_moves_the_training_forward(
    weights: Any,
) -> None:
    model = with_lora(make_model("llama"))
    engine = engine_of(model, weights)
    before = _scored(greedy(engine, PROMPTS, 6))
    matrices = [p for name, p in model.named_parameters() if "lora_B" in name]
    assert len(matrices) == 3 * len(SEVEN)
    for matrix in matrices:
        kept = matrix.detach().clone()
        with torch.no_grad():
            matrix.add_(0.3)
        after = greedy(engine, PROMPTS, 6)
        assert_logprobs_equal_a_forward(model, PROMPTS, after)
        assert _scored(after) != before
        with torch.no_grad():
            matrix.copy_(kept)
    assert _scored(greedy(engine, PROMPTS, 6)) == before


@pytest.mark.parametrize("weights", LAYOUTS)
def test_an_adapter_of_zeros_is_the_base_model_bit_for_bit(weights: Any) -> None:
    base = make_model("qwen3")
    expected = greedy(engine_of(base, weights), PROMPTS, 8)
    model = with_lora(make_model("qwen3"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.zeros_(parameter)
    assert greedy(engine_of(model, weights), PROMPTS, 8) == expected


def test_a_disabled_adapter_is_the_base_model() -> None:
    """What GRPO's reference is."""
    model = with_lora(make_model("llama"))
    engine = engine_of(model)
    with model.disable_adapter():
        found = greedy(engine, PROMPTS, 8)
        assert_logprobs_equal_a_forward(model, PROMPTS, found)
    assert _scored(greedy(engine, PROMPTS, 8)) != _scored(found)


KINDS: dict[str, dict[str, Untyped]] = {
    "rslora": {"use_rslora": True},
    "two modules": {"target_modules": ["v_proj", "down_proj"]},
    "ranks and alphas by layer": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"up_proj": 3}},
    "trained biases": {"bias": "all"},
    "dropout": {"lora_dropout": 0.3},
    "the head": {"target_modules": ["q_proj", "lm_head"]},
    "whole embedding and head": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "token rows": {"trainable_token_indices": [5, 9, 60]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_adapter_scores_as_the_training_forward(kind: str) -> None:
    model = with_lora(make_model("llama-bias"), **KINDS[kind])
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=draw) * 0.1)
    for layout in LAYOUTS:
        completions = greedy(engine_of(model, layout), [*PROMPTS, (5, 9, 60)], 8)
        assert_logprobs_equal_a_forward(model, [*PROMPTS, (5, 9, 60)], completions)


def test_token_rows_of_a_tied_scaled_embedding_under_our_patches() -> None:
    """Gemma scales what it looks up, and its head is the embedding."""
    model = with_lora(make_model("gemma2"), trainable_token_indices=[5, 9])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "trainable_tokens" in name:
                parameter.add_(0.5)
    patch(model, ["attention_block", "mlp_block"])
    completions = greedy(engine_of(model), [(5, 9, 5)], 8)
    assert_logprobs_equal_a_forward(model, [(5, 9, 5)], completions)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "phi3", "granite", "olmo2"])
def test_bf16_errs_no_more_than_one_and_a_half_times_stock(family: str) -> None:
    """Compare errors against fp32 over several models. The merged weight is rounded to bf16, so
    its products differ from those of the stock forward pass."""
    ours, stock = 0.0, 0.0
    for seed in range(3):
        model = with_lora(make_model(family, seed=seed, dtype=torch.bfloat16), seed=seed).eval()
        completions = greedy(engine_of(model), PROMPTS, 12)
        found = torch.cat([torch.tensor(one.policy_logprobs) for one in completions])
        rounded = _forward(model, completions)
        truth = _forward(model.float(), completions)
        ours += relative_rms(found, truth) ** 2
        stock += relative_rms(rounded, truth) ** 2
    assert infinite_if_nan((ours / stock) ** 0.5) <= 1.5


def test_an_adapter_over_nf4_is_merged_into_the_widened_weights(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128}
    model_of(transformers.LlamaConfig(**COMMON | sizes)).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=quantization_config("nf4", torch.float32)
    )
    fix_nf4_layout(model)
    model = with_lora(model)
    completions = greedy(engine_of(model), PROMPTS, 8)
    assert_logprobs_equal_a_forward(model, PROMPTS, completions)
    with pytest.raises(
        UnsupportedModel, match="an adapter cannot be merged into 4-bit weights in place"
    ):
        greedy(engine_of(model, "in_place"), PROMPTS, 8)
    plan = plan_rollout(model, rows=4, prompt_tokens=9, max_tokens=9, free=1 << 30)
    assert plan.weights == "merged"


def _scored(completions: list[Completion]) -> list[list[float]]:
    return [one.policy_logprobs for one in completions]


def _forward(model: Untyped, completions: list[Completion]) -> torch.Tensor:
    pairs = zip(PROMPTS, completions, strict=True)
    return torch.cat([forward_logprobs(model, p, one.token_ids) for p, one in pairs])


def test_the_helper_would_see_an_adapter_that_was_left_out() -> None:
    model = with_lora(make_model("llama"))
    with model.disable_adapter():
        without = greedy(engine_of(model), PROMPTS, 8)
    assert isinstance(model, peft.PeftModel)
    with pytest.raises(AssertionError):
        assert_logprobs_equal_a_forward(model, PROMPTS, without)
