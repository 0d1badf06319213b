"""Conversion of NaN so that it counts as the worst figure."""

from __future__ import annotations

import math


def as_error(figure: float) -> float:
    """Return infinity for NaN, because `max` ignores NaN unless it comes first."""
    return math.inf if math.isnan(figure) else figure


def as_share(figure: float) -> float:
    """Return 0 for NaN, because `min` ignores NaN unless it comes first."""
    return 0.0 if math.isnan(figure) else figure
