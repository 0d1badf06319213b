"""Small random models of every patched family, with gradients that are large enough to compare."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import peft
import torch
import transformers
from trl.trainer.utils import add_fused_lm_head

from tunesmith_schema import PROJECTIONS
from tunesmith_worker.engine.model.softcap import keep_softcap

Untyped = Any  # Any: transformers and peft are not typed

VOCABULARY = 131

COMMON: dict[str, Untyped] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

LAYER_TYPES = ["full_attention", "sliding_attention", "sliding_attention"]

FAMILIES: dict[str, Callable[[], Untyped]] = {
    "llama": lambda: transformers.LlamaConfig(**COMMON, tie_word_embeddings=True),
    "llama-bias": lambda: transformers.LlamaConfig(
        **COMMON, attention_bias=True, mlp_bias=True, head_dim=16
    ),
    "llama-mha": lambda: transformers.LlamaConfig(**COMMON | {"num_key_value_heads": 4}),
    "llama-gelu": lambda: transformers.LlamaConfig(**COMMON, hidden_act="gelu"),
    "llama-3-rope": lambda: transformers.LlamaConfig(
        **COMMON,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "mistral": lambda: transformers.MistralConfig(**COMMON, sliding_window=7),
    "qwen2": lambda: transformers.Qwen2Config(**COMMON),
    "qwen2-sliding": lambda: transformers.Qwen2Config(
        **COMMON, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**COMMON, head_dim=16),
    "gemma2": lambda: transformers.Gemma2Config(
        **COMMON,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=6,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=4.0,
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **COMMON, head_dim=16, query_pre_attn_scalar=16, sliding_window=6, sliding_window_pattern=2
    ),
    "phi3": lambda: transformers.Phi3Config(
        **COMMON, resid_pdrop=0.0, sliding_window=9, partial_rotary_factor=0.5
    ),
    "smollm3": lambda: transformers.SmolLM3Config(**COMMON, no_rope_layers=[1, 0, 1]),
    "granite": lambda: transformers.GraniteConfig(
        **COMMON,
        embedding_multiplier=3.0,
        residual_multiplier=0.4,
        attention_multiplier=0.2,
        logits_scaling=0.8,
    ),
    "olmo2": lambda: transformers.Olmo2Config(**COMMON),
    "olmo3": lambda: transformers.Olmo3Config(**COMMON, sliding_window=6, layer_types=LAYER_TYPES),
    "ministral": lambda: transformers.MinistralConfig(
        **COMMON, head_dim=12, sliding_window=6, layer_types=LAYER_TYPES
    ),
    "cwm": lambda: transformers.CwmConfig(
        **COMMON, head_dim=16, sliding_window=6, layer_types=LAYER_TYPES
    ),
    "gemma": lambda: transformers.GemmaConfig(**COMMON, head_dim=16),
    "vaultgemma": lambda: transformers.VaultGemmaConfig(
        **COMMON,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=6,
        layer_types=LAYER_TYPES,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=4.0,
    ),
    "hyperclovax": lambda: transformers.HyperCLOVAXConfig(
        **COMMON, residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=0.8
    ),
}


def make_model(family: str, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Untyped:
    return model_of(FAMILIES[family](), seed=seed).to(dtype)


def model_of(config: Untyped, *, seed: int = 0) -> Untyped:
    """Make a model with weights ten times larger than initial weights. Its gradients are about
    1e-2."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        keep_softcap(model)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 2:
                    parameter.mul_(10.0)
                elif "norm" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
                else:
                    parameter.copy_(torch.randn_like(parameter) * 0.1)
    return model


def with_lora(model: Untyped, *, seed: int = 1, **settings: Untyped) -> Untyped:
    """Add adapters with random A *and* B, so that both get gradients."""
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    targets = [name for name in (*PROJECTIONS, "qkv_proj", "gate_up_proj") if name in names]
    given = {"r": 5, "lora_alpha": 12, "target_modules": targets, **settings}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **given))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.copy_(torch.randn_like(parameter) * 0.2)
    return model


def packed_batch(lengths: tuple[int, ...] = (23, 1, 40, 9), seed: int = 2) -> dict[str, Untyped]:
    """Make packed rows in the format of TRL's padding-free collator. A third of the labels is
    ignored."""
    draw = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    ids = torch.randint(3, VOCABULARY, (1, total), generator=draw)
    labels = ids.masked_fill(torch.rand(1, total, generator=draw) < 0.33, -100)
    ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    labels[0, ends[:-1].long()] = -100
    return {
        "input_ids": ids,
        "labels": labels,
        "position_ids": torch.cat([torch.arange(n) for n in lengths])[None],
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }


def scored_by_trl(model: Untyped) -> Untyped:
    """Prepare the model like TRL's trainer, with the head that supports `fused_lm_head=True`."""
    causal = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    add_fused_lm_head(causal, outputs=("log_probs", "entropy", "is_top1"))
    return model


def make_tuned(family: str, tuning: str, **lora: Untyped) -> Untyped:
    """Make a model that a trainer can use. `tuning`: "lora" or "full"."""
    model = make_model(family)
    return scored_by_trl(with_lora(model, **lora) if tuning == "lora" else model)


def run_step(model: Untyped, batch: dict[str, Untyped]) -> tuple[Untyped, dict[str, torch.Tensor]]:
    """Return TRL's output, and the gradient of each trainable tensor by name."""
    model.zero_grad()
    output = model(**batch, fused_lm_head=True)
    output.loss.backward()
    named = model.named_parameters()
    return output, {name: p.grad.clone() for name, p in named if p.grad is not None}


def relative_rms(actual: torch.Tensor, truth: torch.Tensor) -> float:
    """Return the RMS of the error divided by the RMS of the exact values. It is 0 for equal zeros,
    and NaN if either tensor has a NaN."""
    error = (actual.double() - truth.double()).norm()
    return float(error / truth.double().norm()) if error else 0.0


def infinite_if_nan(error: float) -> float:
    """Return infinity for NaN, because `max` ignores a NaN that is not the first item."""
    return math.inf if math.isnan(error) else error


def assert_same_gradients(
    actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], limit: float = 1e-5
) -> None:
    """Check that each gradient differs by at most `limit` in relative RMS."""
    assert actual.keys() == expected.keys()
    worst = {one: infinite_if_nan(relative_rms(actual[one], expected[one])) for one in expected}
    name = max(worst, key=lambda one: worst[one])
    assert worst[name] <= limit, f"{name}: {worst[name]:.1e}"


def equal_bits(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return actual.keys() == expected.keys() and all(
        torch.equal(actual[name], expected[name]) for name in expected
    )
