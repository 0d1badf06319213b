"""Fenced code blocks of a Markdown page, and the comment before a block that a test cannot run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "tutorial.md",
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
)
"""Pages whose `sh` and `python` blocks a reader pastes."""

_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+) -->\n)?^(?P<indent> *)```(?P<language>sh|python)\n"
    r"(?P<text>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)
_COMMAND = re.compile(r"(?:^|\$\(|&& |/bin/|exec \w+ )tunesmith ([a-z]+(?: [a-z]+)?)", re.MULTILINE)
GROUPS = {"jobs", "files", "adapters", "models", "keys", "projects", "users", "audit"}
"""Commands of `tunesmith` that have subcommands."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block that a reader pastes into a shell (`sh`) or into Python."""

    language: str
    text: str
    line: int
    reason: str | None
    """Reason why a test cannot run this block; None if the test runs it."""


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            language=match["language"],
            text=re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE),
            line=text.count("\n", 0, match.start("text")) + 1,
            reason=match["reason"],
        )
        for match in _BLOCK.finditer(text)
    ]


def commands_of(text: str) -> set[tuple[str, ...]]:
    """Return the `tunesmith` commands in a text, such as ("serve",) and ("jobs", "create")."""
    commands = set()
    for match in _COMMAND.finditer(text):
        words = match[1].split()
        commands.add(tuple(words if words[0] in GROUPS or words[-1] == "drain" else words[:1]))
    return commands
