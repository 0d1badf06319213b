"""Llama 3 8B without values: only shapes, on the meta device."""

from __future__ import annotations

from typing import Any

import torch
import transformers


def eight_billion() -> Any:  # Any: transformers is not typed
    config = transformers.LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
    )
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)
