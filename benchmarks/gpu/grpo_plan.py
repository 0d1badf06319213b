"""Cases of the benchmark part `grpo`.

This module imports nothing, to keep the parent process small.
"""

from __future__ import annotations

REAL, TINY = "qwen2.5-1.5b", "tiny-qwen"
BATCHES = (8, 32, 128)
"""Batch sizes of decoding, in completions."""


def step_cases(model: str, turn: int) -> list[str]:
    """List the cases of round `turn`: MODEL/ours/lora/TURN (our trainer) and MODEL/stock/lora/TURN
    (stock TRL). Every second round reverses the order of the two cases."""
    sides = ("ours", "stock") if turn % 2 else ("stock", "ours")
    return [f"{model}/{side}/lora/{turn}" for side in sides]


def decoding_cases(model: str) -> list[str]:
    """List the cases MODEL/decode/BATCH (completions of equal length) and MODEL/ragged/BATCH
    (completions of different lengths)."""
    return [*(f"{model}/decode/{batch}" for batch in BATCHES), f"{model}/ragged/{BATCHES[1]}"]
