"""Functions that write Markdown tables and the text of their cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Result = dict[str, Any]  # Any: JSON

NOT_MEASURED = "-"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table. If the last column is `date` and all rows have the same date, a line below
    the table replaces this column."""
    body, note = [list(row) for row in rows], ""
    if head[-1] == "date" and len({row[-1] for row in body}) == 1:
        head, note = head[:-1], f"\nMeasured: {body[0][-1]}.\n"
    lines = [head, ["---"] * len(head), *(row[: len(head)] for row in body)]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + f"\n{note}"


def date(result: Result) -> str:
    return str(result["at"])[:10] if "at" in result else "date not recorded"


def against_bar(ratio: float | None, bar: float | None, *, at_least: bool) -> str:
    """Return the text of a ratio with its bar, such as `2.57x (bar 2.4: met)`."""
    if ratio is None:
        return NOT_MEASURED
    if bar is None:
        return f"{ratio:.2f}x"
    return f"{ratio:.2f}x" + verdict(ratio >= bar if at_least else ratio <= bar, f"{bar:g}")


def verdict(met: bool, bar: str) -> str:
    """Return the text of a bar, such as ` (bar 2.4: met)`."""
    return f" (bar {bar}: {'met' if met else '**missed**'})"


def versions(result: Result) -> str:
    """Return the recorded versions as text."""
    numbers = dict(result.get("versions", {}))
    if "torch" in result:
        numbers["torch"] = result["torch"]
    return ", ".join(f"{name} {number}" for name, number in numbers.items()) or "not recorded"
