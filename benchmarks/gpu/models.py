"""Configurations of four published models and of tiny models.

The weights are random. The numbers are from each model's public config.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import transformers

Untyped = Any  # Any: transformers is not typed

_LLAMA_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _llama(factor: float, **shape: Untyped) -> Untyped:
    return transformers.LlamaConfig(
        vocab_size=128_256,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
        rope_parameters=_LLAMA_ROPE | {"factor": factor},
        bos_token_id=128_000,
        eos_token_id=128_001,
        **shape,
    )


def _qwen(**shape: Untyped) -> Untyped:
    return transformers.Qwen2Config(
        vocab_size=151_936,
        max_position_embeddings=32_768,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=True,
        bos_token_id=151_643,
        eos_token_id=151_643,
        num_key_value_heads=2,
        **shape,
    )


_JOINED: tuple[tuple[str, ...], ...] = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of projections with the same input."""

_TINY = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

CONFIGS: dict[str, Callable[[], Untyped]] = {
    "qwen2.5-0.5b": lambda: _qwen(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14
    ),
    "qwen2.5-1.5b": lambda: _qwen(
        hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12
    ),
    "llama-3.2-1b": lambda: _llama(
        32.0,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        tie_word_embeddings=True,
    ),
    "llama-3.1-8b": lambda: _llama(
        8.0,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=False,
    ),
    "tiny-llama": lambda: transformers.LlamaConfig(**_TINY),
    "tiny-qwen": lambda: transformers.Qwen2Config(**_TINY, tie_word_embeddings=True),
}


def random_model(name: str, device: torch.device, dtype: torch.dtype) -> Untyped:
    """Make a causal language model on `device` with transformers' random initial weights."""
    torch.manual_seed(0)
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=dtype)


@torch.no_grad()
def with_large_gradients(model: Untyped) -> Untyped:
    """Change the weights of `model` so that every layer affects loss and gradient. An [out, in]
    weight gets standard deviation 1 / sqrt(in), so that activations keep their size. The logits get
    a standard deviation of about 2."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            parameter.normal_(std=parameter.shape[1] ** -0.5)
        elif "norm" in name:
            parameter.add_(torch.randn_like(parameter) * 0.2)
        else:
            parameter.normal_(std=0.1)
    model.get_output_embeddings().weight.normal_(std=2 * parameter_width(model) ** -0.5)
    return model


def parameter_width(model: Untyped) -> int:
    return int(model.config.hidden_size)


def products_of_step(model: Untyped, tokens: int) -> list[tuple[int, int, int]]:
    """List the matrix products of a LoRA step with frozen weights: sizes m, k, n.

    Each weight has one product in the forward pass and one in the backward pass. The backward
    product computes the gradient of the weight's input. Weights with the same input count as one
    matrix. The list has no products of adapters."""
    products = []
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or "lora_" in name:
            continue
        out, size = module.weight.shape
        own = name.removesuffix(".base_layer")
        joined: tuple[str, ...] = next((group for group in _JOINED if own.endswith(group)), ())
        if joined and not own.endswith(joined[0]):
            continue
        for other in joined[1:]:
            sibling = model.get_submodule(name.replace(joined[0], other))
            out += sibling.weight.shape[0]
        products += [(tokens, size, out), (tokens, out, size)]
    return products


def operations_per_token(model: Untyped, length: int) -> float:
    """Return the floating-point operations per token of a LoRA step without recomputation, for rows
    of `length` tokens. Each element of a frozen weight costs 4 operations per token: 2 in the
    forward pass, and 2 in the backward pass for the gradient of the input. A token attends to
    length / 2 keys on average. In each layer, each key costs 4 operations forward and 10 backward
    for each element of each head. The operations of adapters are not included."""
    config = model.config
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    matrices: int = sum(
        math.prod(module.weight.shape)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and "lora_" not in name
    )
    attention: float = 2 * 7 * config.num_hidden_layers * heads * head_dim * length / 2
    return 4 * matrices + attention
