"""Ordered cases of part `grpo`. This module imports nothing, to keep the parent process small."""

from __future__ import annotations

REAL, TINY = "qwen2.5-1.5b", "tiny-qwen"
BATCHES = (8, 32, 128)
"""Batch sizes of decoding, in completions."""


def grpo_cases(model: str, rounds: int) -> list[tuple[str, ...]]:
    """List the cases of each process. The order is: MODEL/SIDE/TUNING/TURN with alternating sides,
    our full tuning, MODEL/decode/BATCH and MODEL/ragged/BATCH."""
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
