"""Bars of the histogram of row lengths."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tunesmith_schema import FileStats


@dataclass(frozen=True, kw_only=True)
class Bar:
    height: float
    """Height from 0 to 100."""
    title: str


def bars(stats: FileStats | None) -> list[Bar]:
    """Return a bar for each bin of the histogram. Heights grow with the square root of the number
    of rows, so that bins with few rows are visible beside bins with many rows."""
    if stats is None or stats.lengths is None:
        return []
    bins = stats.lengths.histogram
    most = max(item.rows for item in bins)
    starts = [0, *(item.upto + 1 for item in bins[:-1])]
    return [
        Bar(
            height=100 * math.sqrt(item.rows / most),
            title=f"{start:,} to {item.upto:,} characters: {item.rows:,} rows",
        )
        for start, item in zip(starts, bins, strict=True)
    ]
