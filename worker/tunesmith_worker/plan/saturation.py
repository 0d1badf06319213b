"""Whether more rows at a time would make a run faster, or only take more memory.

A pass over n tokens takes a + b n seconds: a for launching and for what does not depend on n. Runs
have passes of many lengths, from which a and b are fitted; doubling n then gives

    gain = speed(2 n) / speed(n) - 1 = 2 (a + b n) / (a + 2 b n) - 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SATURATED_BELOW = 0.05
"""A doubling that gains less than this is not worth its memory."""


@dataclass(frozen=True, kw_only=True)
class Saturation:
    tokens: int
    """Of a micro-batch."""
    gain: float
    """Of tokens per second, were it twice as large."""

    @property
    def saturated(self) -> bool:
        return self.gain < SATURATED_BELOW

    def sentence(self, device: str) -> str:
        where = f"at {self.tokens:,} tokens a micro-batch"
        if self.saturated:
            return f"{device} already saturated {where}: more rows only add memory"
        return f"{device} not saturated {where}: twice as many would gain {self.gain:.0%} of speed"


def of_two(tokens: int, speed: float, doubled_speed: float) -> Saturation:
    """From two measured speeds, in useful tokens per second, of micro-batches of `tokens` and of
    twice as many."""
    return Saturation(tokens=tokens, gain=doubled_speed / speed - 1)


def of_passes(passes: Sequence[tuple[int, float]]) -> Saturation | None:
    """From (tokens, seconds) of a run's passes; None where they do not tell: fewer than eight, or
    all about equally long. Robust against a few slow ones: Theil and Sen's slope, the median of the
    slopes of pairs (https://doi.org/10.1080/01621459.1968.10480934)."""
    if len(passes) < 8:
        return None
    ordered = sorted(passes)[-200:]
    tokens = sorted(n for n, _ in ordered)[len(ordered) // 2]
    if ordered[-1][0] < 1.3 * ordered[0][0]:
        return None
    slopes = [
        (t2 - t1) / (n2 - n1)
        for i, (n1, t1) in enumerate(ordered)
        for n2, t2 in ordered[i + 1 :]
        if n2 >= 1.1 * n1
    ]
    slope = max(0.0, sorted(slopes)[len(slopes) // 2])
    offsets = sorted(t - slope * n for n, t in ordered)
    fixed = max(0.0, offsets[len(offsets) // 2])
    doubled = fixed + 2 * slope * tokens
    if doubled <= 0:
        return None
    return Saturation(tokens=tokens, gain=2 * (fixed + slope * tokens) / doubled - 1)
