"""What part `speed` runs, and in which order. Imports nothing, for the parent's sake."""

from __future__ import annotations

REAL = ("llama-3.1-8b", "qwen2.5-1.5b", "llama-3.2-1b", "qwen2.5-0.5b")
"""Those with bars of their own first: time may run out."""
PROFILED = (*REAL[:2], "qwen2.5-0.5b")
"""The smallest too: there the host may be slower than the device."""
TINY = ("tiny-llama",)
WARM_UP, STEPS = 3, 8
SETTINGS = ("no-recompute", "defaults")


def speed_cases(model: str, side: str, turn: int) -> tuple[str, ...]:
    """MODEL/SIDE/SETTING/TURN, and a profile of ours in the first turn."""
    profiled = side == "ours" and turn == 1 and model in (*PROFILED, *TINY)
    settings = (*SETTINGS, "profile") if profiled else SETTINGS
    return tuple(f"{model}/{side}/{setting}/{turn}" for setting in settings)
