"""Pieces of Markdown."""

from __future__ import annotations


def code(text: str, limit: int = 300) -> str:
    """One line of code in a table's cell."""
    line = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{line[:limit]}{'...' if len(line) > limit else ''}`" if line else "(nothing)"


def table(head: tuple[str, ...], rows: list[tuple[str, str]] | list[tuple[str, str, str]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
