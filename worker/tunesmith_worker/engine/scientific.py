"""Format small numbers for messages."""

from __future__ import annotations


def scientific(value: float, decimals: int = 1) -> str:
    """Return a number in scientific notation, for example `1.2e-05`; zero is `0`."""
    return "0" if value == 0 else f"{value:.{decimals}e}"
