"""Cases of the benchmark part `speed`.

This module imports nothing, to keep the parent process small.
"""

from __future__ import annotations

BARRED = ("llama-3.1-8b", "qwen2.5-1.5b")
"""Models whose results have a required value."""
OTHERS = ("llama-3.2-1b", "qwen2.5-0.5b")
REAL = (*BARRED, *OTHERS)
PROFILED = (*BARRED, "qwen2.5-0.5b")
"""Profiled models. The profile of the smallest model shows whether the CPU limits its speed."""
TINY = ("tiny-llama",)
WARM_UP, STEPS = 3, 8
SETTINGS = ("no-recompute", "defaults")


def speed_cases(model: str, side: str, turn: int) -> tuple[str, ...]:
    """List the cases MODEL/SIDE/SETTING/TURN."""
    return tuple(f"{model}/{side}/{setting}/{turn}" for setting in SETTINGS)


def profile_case(model: str) -> str:
    return f"{model}/ours/profile/1"
