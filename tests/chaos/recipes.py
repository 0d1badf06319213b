"""Deterministic recipes of the jobs, and the times of the services."""

from __future__ import annotations

from typing import Any

ENV = {
    "TUNESMITH_LEASE_SECONDS": "4",
    "TUNESMITH_JANITOR_SECONDS": "0.5",
    "TUNESMITH_MAX_LOSSES": "1000",
    "TUNESMITH_RETRY_SECONDS": "0",
}
SEED = 11
_COMMON: dict[str, Any] = {
    "max_steps": 200,
    "save_steps": 7,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-3,
}
_FULL = _COMMON | {"tuning": "full", "packing": False}
_DRAWN = {"num_generations": 4, "prompts_per_step": 2, "max_completion_length": 24}
_GRPO: dict[str, Any] = {
    "max_steps": 42,
    "save_steps": 7,
    "learning_rate": 1e-3,
    "self_check": False,
    "lora": {"r": 4},
}
GRADER = {"type": "length", "unit": "characters", "target": 4, "limit": 40}
"""Grader of the recipes with `grpo`: rewards of a random model's completions differ."""
RECIPES: dict[str, dict[str, Any]] = {
    "lora": _COMMON | {"packing": False, "lora": {"r": 4, "lora_dropout": 0.1}},
    "grpo thrice": _GRPO | {"grpo": _DRAWN | {"num_iterations": 3, "beta": 0.1}},
    "full bf16_sr8": _FULL | {"precision": "bf16_sr8"},
    "lora packed": _COMMON | {"packing": True, "max_seq_length": 128, "lora": {"r": 4}},
    "full bf16_split_master": _FULL | {"precision": "bf16_split_master"},
    "grpo lora": _GRPO | {"grpo": _DRAWN},
    "lora stock": _COMMON | {"packing": False, "patches": "off", "lora": {"r": 4}},
    "full fp32": _FULL | {"precision": "fp32"},
    "full bf16": _FULL | {"precision": "bf16"},
    "full packed": _FULL | {"packing": True, "max_seq_length": 128},
    "grpo bf16_split_master": _GRPO
    | {"grpo": _DRAWN, "tuning": "full", "lora": None, "precision": "bf16_split_master"},
}

_STEPS = {"lora": 70, "grpo thrice": 21, "full bf16_sr8": 70}
SHORT = {f"short {name}": RECIPES[name] | {"max_steps": steps} for name, steps in _STEPS.items()}
"""Recipes of the short chaos test."""
ALL = RECIPES | SHORT
