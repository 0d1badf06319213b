"""Markdown tables and texts of cells, shared by the sections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Result = dict[str, Any]  # Any: JSON

NOT_MEASURED = "-"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines) + "\n"


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
