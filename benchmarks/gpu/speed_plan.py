"""Ordered cases of part `speed`. This module imports nothing, to keep the parent process small."""

from __future__ import annotations

REAL = ("llama-3.1-8b", "qwen2.5-1.5b", "llama-3.2-1b", "qwen2.5-0.5b")
"""Models whose figures have a required value come first, because time may run out."""
PROFILED = (*REAL[:2], "qwen2.5-0.5b")
"""Profiled models. For the smallest model, the host may be slower than the GPU."""
TINY = ("tiny-llama",)
WARM_UP, STEPS = 3, 8
SETTINGS = ("no-recompute", "defaults")


def speed_cases(model: str, side: str, turn: int) -> tuple[str, ...]:
    """List the cases MODEL/SIDE/SETTING/TURN, and a profile of our side in the first turn."""
    profiled = side == "ours" and turn == 1 and model in (*PROFILED, *TINY)
    settings = (*SETTINGS, "profile") if profiled else SETTINGS
    return tuple(f"{model}/{side}/{setting}/{turn}" for setting in settings)
