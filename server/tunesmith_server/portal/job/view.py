"""State of the job page, from its address: filters, attempt, zoom and smoothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast, get_args
from urllib.parse import urlencode

from tunesmith_schema import EventKind
from tunesmith_server.portal.visit import Visit

Level = Literal["info", "warn", "error"]
_ZOOM = re.compile(r"\d{1,9}-\d{1,9}")
_SMOOTHING = re.compile(r"0\.\d{1,2}")
_MAX_TEXT = 200
HIDDEN = (EventKind.METRICS, EventKind.SAMPLES)
"""Kinds of events that the list leaves out, because curves and completions show them."""


@dataclass(frozen=True, kw_only=True)
class JobView:
    """View of the charts: range of steps, selected step, smoothing and axis."""

    job_id: str
    attempt: int | None
    """Attempt whose report is shown; None means the newest."""
    kind: str
    level: str
    text: str
    """Filter for events: text that their messages contain."""
    after: str
    """Last event of the previous page; the list continues after this event."""
    ask: str
    """Command whose confirmation is open: `cancel`, `stop` or `fork`; empty for none."""
    zoom: str
    """First and last step, for example `120-400`; empty for the whole run."""
    smoothing: str
    """Factor of the moving average; empty for no smoothing."""
    at: str
    """Step whose values stay shown; empty for no step."""

    @property
    def path(self) -> str:
        return f"/portal/jobs/{self.job_id}"

    @property
    def kinds(self) -> list[EventKind]:
        shown = [kind for kind in EventKind if kind not in HIDDEN]
        return [kind for kind in shown if kind == self.kind] or shown

    @property
    def levels(self) -> list[Level]:
        return [cast(Level, self.level)] if self.level in get_args(Level) else []

    @property
    def is_filtered(self) -> bool:
        return bool(self.kind or self.level or self.text)

    def address(self, part: str = "", **changes: str) -> str:
        """Return the address of this view with some of its parameters changed. `part`: text
        appended to the path of the page."""
        values = {
            "attempt": "" if self.attempt is None else str(self.attempt), "kind": self.kind,
            "level": self.level, "q": self.text, "after": self.after, "x": self.zoom,
            "s": self.smoothing, "at": self.at, **changes,
        }  # fmt: skip
        query = urlencode({name: value for name, value in values.items() if value})
        return f"{self.path}{part}?{query}" if query else f"{self.path}{part}"


def view_of(visit: Visit) -> JobView:
    """Return the view; a parameter with a wrong value counts as missing."""
    attempt, zoom, smoothing = visit.query("attempt"), visit.query("x"), visit.query("s")
    at = visit.query("at")
    is_number = attempt.isascii() and attempt.isdigit() and len(attempt) < 7
    return JobView(
        job_id=visit.param("job_id"),
        attempt=(int(attempt) or None) if is_number else None,
        kind=visit.query("kind")[:_MAX_TEXT],
        level=visit.query("level")[:_MAX_TEXT],
        text=visit.query("q")[:_MAX_TEXT],
        after=visit.query("after")[:_MAX_TEXT],
        ask=visit.query("ask")[:_MAX_TEXT],
        zoom=zoom if _ZOOM.fullmatch(zoom) else "",
        smoothing=smoothing if _SMOOTHING.fullmatch(smoothing) else "",
        at=at if at.isascii() and at.isdigit() and len(at) < 10 else "",
    )
