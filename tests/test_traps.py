"""tests/traps.md: every test that it names exists, and every trap has one or a reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROWS = [
    line
    for line in (TESTS / "traps.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| Trap ")
]
NAMED = sorted({name for row in ROWS for name in re.findall(r"`([\w/]+\.py::\w+)`", row)})


@pytest.mark.parametrize("name", NAMED)
def test_a_test_named_there_exists(name: str) -> None:
    file, _, function = name.partition("::")
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_every_trap_has_a_test_or_a_reason(row: str) -> None:
    assert "::" in row or "Not yet: " in row


def test_every_section_is_there() -> None:
    """The list names 15 traps of the loss, 7 of positions, 14 of memory and 11 of saving."""
    assert len(ROWS) == 15 + 7 + 14 + 11
