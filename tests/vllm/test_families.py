"""Families and dtypes: vLLM's log-probs are those of a forward pass of the trained model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers

from tests.worker.engine.patches.models import model_of, with_lora
from tests.worker.engine.rollout.rollouts import forward_logprobs
from tunesmith_worker.engine.rollout import SamplingParams
from tunesmith_worker.engine.rollout.vllm.serves import FAMILIES

from .engines import SHAPE, Engines, adapted, engines_of, gap, requests_of

Untyped = Any  # Any: transformers is not typed

GREEDY = SamplingParams(temperature=0.0)
CONFIGS: dict[str, Callable[[], Untyped]] = {
    "llama": lambda: transformers.LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "mistral": lambda: transformers.MistralConfig(**SHAPE, sliding_window=7),
    "qwen2": lambda: transformers.Qwen2Config(**SHAPE),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE, head_dim=32, tie_word_embeddings=True),
    "gemma": lambda: transformers.GemmaConfig(**SHAPE, head_dim=32),
    "gemma3_text": lambda: transformers.Gemma3TextConfig(
        **SHAPE, head_dim=32, query_pre_attn_scalar=16, sliding_window=6, sliding_window_pattern=2
    ),
    "granite": lambda: transformers.GraniteConfig(
        **SHAPE,
        embedding_multiplier=3.0,
        residual_multiplier=0.4,
        attention_multiplier=0.2,
        logits_scaling=0.8,
    ),
    "phi3": lambda: transformers.Phi3Config(**SHAPE, resid_pdrop=0.0),
}


@contextmanager
def engines(model: Untyped) -> Iterator[Engines]:
    both = engines_of(model)
    try:
        yield both
    finally:
        both.vllm.close()


def test_each_supported_family_has_a_test() -> None:
    assert sorted(CONFIGS) == sorted(FAMILIES)


@pytest.mark.parametrize("family", CONFIGS)
def test_log_probs_are_those_of_a_forward_pass(family: str) -> None:
    config = CONFIGS[family]()
    assert config.model_type == family
    with engines(adapted(config)) as both:
        requests = requests_of(6, GREEDY)
        ours, native = both.both(requests)
    assert [one.token_ids for one in ours] == [one.token_ids for one in native]
    for request, one in zip(requests, ours, strict=True):
        expected = forward_logprobs(both.model, request.prompt_ids, one.token_ids)
        assert one.policy_logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_bf16_log_probs_are_near_those_of_the_native_engine() -> None:
    """Weights have the size of a trained model's. Ten times larger ones would amplify rounding."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SHAPE, initializer_range=0.05)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    with engines(with_lora(model)) as both:
        ours, native = both.both(requests_of(64, GREEDY))
    assert gap(ours, native) <= 0.02


def test_full_tuning_generates_with_all_current_weights() -> None:
    """Embedding, norms and a tied head included."""
    with engines(model_of(transformers.Qwen2Config(**SHAPE, tie_word_embeddings=True))) as both:
        for step in range(2):
            ours, native = both.both(requests_of(6, GREEDY))
            assert [one.token_ids for one in ours] == [one.token_ids for one in native]
            assert gap(ours, native) <= 1e-4
            draw = torch.Generator().manual_seed(step)
            with torch.no_grad():
                for parameter in both.model.parameters():
                    parameter.add_(torch.randn(parameter.shape, generator=draw) * 0.02)
