"""What part `grpo` runs, and in which order. Imports nothing, for the parent's sake."""

from __future__ import annotations

REAL, TINY = "qwen2.5-1.5b", "tiny-qwen"
BATCHES = (8, 32, 128)
"""Completions that are drawn at the same time."""


def grpo_cases(model: str, rounds: int) -> list[tuple[str, ...]]:
    """MODEL/SIDE/TUNING/TURN, a process for each, sides in turn; then full tuning by ours and
    MODEL/decode/BATCH, and MODEL/ragged/BATCH for one of them."""
    trained = [
        (f"{model}/{side}/lora/{turn}",)
        for turn in range(1, rounds + 1)
        for side in (("ours", "stock") if turn % 2 else ("stock", "ours"))
    ]
    decoded = (
        *(f"{model}/decode/{batch}" for batch in BATCHES),
        f"{model}/ragged/{BATCHES[1]}",
    )
    return [*trained, (f"{model}/ours/full/1",), decoded]
