"""Convert NaN to the worst possible value."""

from __future__ import annotations

import math


def as_error(figure: float) -> float:
    """Return infinity for NaN, because `max` ignores a NaN that is not the first item."""
    return math.inf if math.isnan(figure) else figure


def as_share(figure: float) -> float:
    """Return 0 for NaN, because `min` ignores a NaN that is not the first item."""
    return 0.0 if math.isnan(figure) else figure
