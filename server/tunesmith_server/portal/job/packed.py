"""Curves for the charts of a page, in a short form. Steps become differences, and values have only
the digits that a chart shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .charts import Curves

_LEVELS = 1000
"""Number of different heights that a chart can show."""
_MIN_DIGITS = 4
"""Number of significant figures with which a chart shows the values beside the names of its curves
(`number` in job.js)."""
_MAX_DIGITS = 6
_SMALLEST_SPAN = 1e-300
"""If the values of a curve span less than this, they are not rounded, because `_LEVELS` divided by
the span can be infinite."""


def document(curves: Curves, void: Sequence[Mapping[str, Any]] = (), *, finer: bool) -> Any:
    """Return the JSON object that the portal's script chart.js reads.

    `void`: stretches of `MetricColumns`. `finer`: True if the browser can request more points
    and digits for a range of steps. If `finer` is False, the values keep all digits.
    """
    stretches = [{**stretch, "curves": _packed(stretch["curves"], finer)} for stretch in void]
    return {"curves": _packed(curves, finer), "void": stretches, "finer": finer}


def _packed(curves: Curves, finer: bool) -> dict[str, Any]:  # Any: JSON
    return {
        name: {
            **_steps(curve["steps"]),
            "values": _values(curve["values"]) if finer else curve["values"],
        }
        for name, curve in curves.items()
    }


def _steps(steps: Sequence[float]) -> dict[str, Any]:  # Any: JSON
    """Return the horizontal axis of a chart as an object for the portal's script chart.js. If all
    values are whole numbers (steps), its field `by` has the difference of each value from the
    previous value. Otherwise (for example hours), its field `steps` has the values."""
    if not all(step == int(step) for step in steps):
        return {"steps": steps}
    return {"by": [int(step - before) for step, before in zip(steps, [0, *steps], strict=False)]}


def _values(values: Sequence[float | None]) -> Sequence[float | None]:
    """Round the values to the significant figures that their chart can show, but at least 4. If 6
    or more are needed, return the values unchanged, because a curve's values have at most 6."""
    known = [value for value in values if value is not None]
    span = max(known) - min(known) if known else 0.0
    if not _SMALLEST_SPAN < span < math.inf:
        return values
    whole = math.floor(math.log10(max(abs(max(known)), abs(min(known))))) + 1
    decimals = math.ceil(math.log10(_LEVELS / span))
    digits = max(_MIN_DIGITS, whole, whole + decimals)
    if digits >= _MAX_DIGITS:
        return values
    form = f"%.{digits}g"
    short = (value if value is None else float(form % value) for value in values)
    return [int(value) if value is not None and value.is_integer() else value for value in short]
