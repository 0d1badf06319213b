"""Limits for metrics of a reinforcement run. The trainer warns about values above a limit; the
portal draws the limits."""

from __future__ import annotations

_GAP = {"fp32": 0.01}
_GAP_16_BITS = 0.1


def largest_gap(precision: str) -> float:
    """Return the limit of the mean absolute difference, in nats, between a token's log-prob in
    generation and in training. Rounding alone causes a mean of 1e-6 in fp32, and of 1e-3 to 2e-2 in
    16 bits."""
    return _GAP.get(precision, _GAP_16_BITS)
