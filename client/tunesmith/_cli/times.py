"""Times on the command line, such as `7d` or `2026-01-31`."""

from __future__ import annotations

import re
import time
from datetime import datetime

import typer

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGO = re.compile(r"([0-9]{1,6})([smhd])")


def parse_time(text: str | None, option: str) -> int | None:
    """Return the Unix seconds of an age (`30m`, `12h`, `7d`) or of a local date and time."""
    if text is None:
        return None
    if match := _AGO.fullmatch(text):
        return int(time.time()) - int(match[1]) * _UNITS[match[2]]
    try:
        return max(0, int(datetime.fromisoformat(text).timestamp()))
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is neither an age such as 30m, 12h or 7d, nor a date such as 2026-01-31",
            param_hint=option,
        ) from None
