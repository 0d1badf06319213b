"""State of the page that compares jobs, from its address: jobs, axis, zoom, hidden lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import cast, get_args
from urllib.parse import urlencode

from tunesmith_schema.comparison import Axis
from tunesmith_server.portal.visit import Visit
from tunesmith_server.services.training import comparison

LEAST, MOST = 2, comparison.MAX_COMPARED
"""Smallest and largest number of jobs that can be compared."""
AXES: dict[Axis, str] = {"step": "Steps", "tokens": "Trained tokens", "hours": "Hours"}
_MAX_ID = 100
_POSITION = re.compile(r"[0-9]{1,10}([.][0-9]{1,6})?")
_ZOOM = re.compile(r"[0-9.]{1,12}-[0-9.]{1,12}")
_SMOOTHING = re.compile(r"0\.\d{1,2}")
_HIDDEN = re.compile(r"[1-8](,[1-8]){0,7}")


@dataclass(frozen=True, kw_only=True)
class CompareView:
    """Jobs and curves that the visitor looks at."""

    job_ids: tuple[str, ...]
    """Ids of the jobs without duplicates, in the same order as in the address."""
    axis: Axis
    zoom: str
    """Ends of the shown range of the axis, for example `120-400`; empty for the whole axis."""
    smoothing: str
    """Factor of the moving average; empty for no smoothing."""
    at: str
    """Position on the axis that the visitor selected: the page shows the values of the curves
    there. Empty for no position."""
    hidden: str
    """Numbers of the jobs whose curves are hidden, for example `1,3`."""
    row: int | None
    """Row of the training data whose completions are compared."""

    @property
    def is_complete(self) -> bool:
        return LEAST <= len(self.job_ids) <= MOST

    @property
    def query(self) -> str:
        """Return jobs and axis as the query of an address."""
        return urlencode({"jobs": ",".join(self.job_ids), "axis": self.axis}, safe=",")

    def address(self, part: str = "", **changes: str) -> str:
        """Return the address of this view with some of its parameters changed.

        `part` is appended to the path. If the axis changes, `zoom` and `at` are removed.
        """
        values = {
            "jobs": ",".join(self.job_ids), "axis": "" if self.axis == "step" else self.axis,
            "x": "" if "axis" in changes else self.zoom, "s": self.smoothing, "hide": self.hidden,
            "at": "" if "axis" in changes else self.at,
            "row": "" if self.row is None else str(self.row), **changes,
        }  # fmt: skip
        query = urlencode({name: value for name, value in values.items() if value}, safe=",")
        return f"/portal/compare{part}?{query}"


def view_of(visit: Visit) -> CompareView:
    """Return the view; a parameter with a wrong value counts as missing. `jobs` may be one
    comma-separated list, or a repeated parameter of a form."""
    names = [name[:_MAX_ID] for text in visit.queries("jobs") for name in text.split(",")]
    names = [name.replace("\0", "").strip() for name in names]
    axis, zoom, smoothing = visit.query("axis"), visit.query("x"), visit.query("s")
    row, hidden, at = visit.query("row"), visit.query("hide"), visit.query("at")
    is_number = row.isascii() and row.isdigit() and len(row) < 10
    return CompareView(
        job_ids=tuple(dict.fromkeys(filter(None, names))),
        axis=cast(Axis, axis) if axis in get_args(Axis) else "step",
        zoom=zoom if _ZOOM.fullmatch(zoom) else "",
        smoothing=smoothing if _SMOOTHING.fullmatch(smoothing) else "",
        at=at if _POSITION.fullmatch(at) else "",
        hidden=hidden if _HIDDEN.fullmatch(hidden) else "",
        row=int(row) if is_number else None,
    )
