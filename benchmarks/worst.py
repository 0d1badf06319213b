"""The worst of several figures: one that is no number is worse than all others."""

from __future__ import annotations

import math


def as_error(figure: float) -> float:
    """Infinite for NaN, which `max` passes over unless it comes first."""
    return math.inf if math.isnan(figure) else figure


def as_share(figure: float) -> float:
    """0 for NaN, which `min` passes over unless it comes first."""
    return 0.0 if math.isnan(figure) else figure
