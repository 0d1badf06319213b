"""Texts for templates: numbers, times, sizes, states and small drawings. Pure functions."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

UNKNOWN = "\N{EN DASH}"
"""Text shown for an unknown value; 0 is a known value."""


class State(NamedTuple):
    """A state in words, and its tone: the last part of the class `is-...` in app.css."""

    label: str
    tone: str


_STATES = {
    "validating_files": State("Validating", "wait"),
    "queued": State("Queued", "wait"),
    "running": State("Running", "run"),
    "pausing": State("Pausing", "hold"),
    "paused": State("Paused", "hold"),
    "succeeded": State("Succeeded", "good"),
    "failed": State("Failed", "bad"),
    "cancelled": State("Cancelled", "off"),
    "uploaded": State("Being read", "wait"),
    "processed": State("Ready", "good"),
    "error": State("Not usable", "bad"),
    "busy": State("Busy", "run"),
    "idle": State("Free", "good"),
    "not_ready": State("Not ready", "wait"),
    "drained": State("Drained", "hold"),
    "gone": State("Gone", "off"),
}


def state_of(name: str) -> State:
    return _STATES.get(name, State(words(name).capitalize(), "off"))


def words(name: str) -> str:
    """Return an identifier as words: `self_check` as `self check`."""
    return name.replace("_", " ")


def number(value: float | None, digits: int = 4) -> str:
    """Return a number as text with `digits` significant figures. Large numbers become whole numbers
    with commas; numbers below 0.001 get an exponent."""
    if value is None:
        return UNKNOWN
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    if abs(float(f"{value:.{digits}g}")) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    if abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.{digits}g}"


def count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def percent(share: float | None) -> str:
    """Return a share from 0 to 1 in whole per cent; 100 % only if the share is 1."""
    if share is None:
        return UNKNOWN
    return f"{min(99, round(share * 100)) if share < 1 else round(share * 100)} %"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units, for example `2 h 05 min`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"


def rough(seconds: float) -> str:
    """Return an estimated duration without decimals, for example `40 s`, `14 min` or
    `2 h 05 min`."""
    tens = math.ceil(max(seconds, 1) / 10)
    if tens < 6:
        return f"{tens * 10} s"
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 60 else duration(minutes * 60)


def ago(moment: float | None, now: float | None = None) -> str:
    """Return a past time relative to now, for example `5 min ago`."""
    if moment is None:
        return UNKNOWN
    seconds = (time.time() if now is None else now) - moment
    if seconds < 10:
        return "just now"
    for limit, unit, name in ((60, 1, "s"), (3600, 60, "min"), (86_400, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // unit)} {name} ago"
    return f"{int(seconds // 86_400)} d ago"


def soon(moment: float | None, now: float | None = None) -> str:
    """Return a future time relative to now, for example `in 5 min`."""
    if moment is None:
        return UNKNOWN
    seconds = moment - (time.time() if now is None else now)
    if seconds < 60:
        return "within a minute"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"in {minutes} min"
    return f"in {duration(minutes * 60)}"


def moment(value: float | None) -> str:
    """Return a time exactly, in UTC, for example `2026-03-01 14:05:09 UTC`."""
    if value is None:
        return UNKNOWN
    return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def size(count_of_bytes: float | None) -> str:
    """Return a size in binary units, for example `1.5 GiB`."""
    if count_of_bytes is None:
        return UNKNOWN
    value = float(count_of_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1023.95:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def sparkline(values: Sequence[float | None], width: int = 96, height: int = 24) -> str:
    """Return a curve as the attribute `d` of an SVG path; missing values give a gap in the curve.
    Returns an empty text for fewer than two values."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if len(known) < 2:
        return ""
    low = min(known)
    span = (max(known) - low) or 1.0
    step = (width - 2) / (len(values) - 1)
    return path(
        None
        if value is None or not math.isfinite(value)
        else (1 + index * step, height - 2 - (value - low) / span * (height - 4))
        for index, value in enumerate(values)
    )


def path(points: Iterable[tuple[float, float] | None], digits: int = 1) -> str:
    """Return the attribute `d` of an SVG path through `points`, rounded to `digits` decimals; None
    gives a gap. The path has the differences between points, which need fewer digits."""
    scale = 10**digits
    parts, pen_is_down, x, y = [], False, 0, 0
    for point in points:
        if point is None:
            pen_is_down = False
            continue
        to_x, to_y = round(point[0] * scale), round(point[1] * scale)
        across, down = f"{(to_x - x) / scale:g}", f"{(to_y - y) / scale:g}"
        gap = "" if across[0] == "-" else " "  # a minus sign separates numbers too
        parts.append(gap if pen_is_down else "m")  # pairs after the first one of `m` are lines
        parts.append(across + ("" if down[0] == "-" else " ") + down)
        pen_is_down, x, y = True, to_x, to_y
    return "".join(parts)


_BROWSERS = (("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrom", "Chrome"),
             ("Safari/", "Safari"))  # fmt: skip
_SYSTEMS = (("Android", "Android"), ("iPhone", "iPhone"), ("iPad", "iPad"), ("Windows", "Windows"),
            ("Mac OS", "macOS"), ("Linux", "Linux"))  # fmt: skip


def browser(user_agent: str) -> str:
    """Return the browser and the system in a `User-Agent`, for example `Firefox on Linux`; if both
    are unknown, return the start of the text."""
    found = [
        next((name for part, name in table if part in user_agent), "")
        for table in (_BROWSERS, _SYSTEMS)
    ]
    return " on ".join(filter(None, found)) or user_agent[:80]
