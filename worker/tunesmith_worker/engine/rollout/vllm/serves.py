"""Models for which vLLM returns the same log-probs as the trainer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tunesmith_schema import LoraRecipe

from .plan import server_address

Untyped = Any  # Any: transformers is not typed

FAMILIES = (
    "gemma",
    "gemma3_text",
    "granite",
    "llama",
    "mistral",
    "phi3",
    "qwen2",
    "qwen3",
)
"""Model types whose greedy tokens and log-probs are tested against transformers."""
_ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
_FIXED_ROPE = ("default", "linear", "llama3", "yarn", "proportional")


def why_not(
    config: Untyped,
    device: torch.device,
    precision: str,
    lora: LoraRecipe | None,
    quantization: str,
) -> str | None:
    """Return the reason why vLLM cannot serve a model; None if it can."""
    if config.model_type not in FAMILIES:
        return f"vLLM's log-probs are not tested for the family {config.model_type}"
    activation = getattr(config, "hidden_activation", None) or config.hidden_act
    if activation not in _ACTIVATIONS:
        return f"vLLM does not compute the activation {activation}"
    if quantization != "none" and server_address() is not None:
        return "a vLLM server cannot use the trainer's quantized weights"
    if quantization == "int8":
        return "vLLM and the trainer compute int8 base models differently"
    if precision == "fp16" and device.type == "cpu":
        return "vLLM has no fp16 on a CPU"
    for kind in _rope_types(config.get_text_config()):
        if kind not in _FIXED_ROPE:
            return f"vLLM does not adapt RoPE frequencies of type {kind} to the sequence length"
    return None


def _rope_types(config: Untyped) -> Iterator[str]:
    parameters = getattr(config, "rope_parameters", None) or {}
    groups = [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
    for group in groups:
        yield group.get("rope_type", "default")
