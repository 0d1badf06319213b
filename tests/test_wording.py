"""Rules of docs/contributing/rules.md on wording that a program can check."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = ("benchmarks/", "client/", "examples/", "kernels/", "migrations/", "schema/", "server/")
CLAUSE_OPENERS = frozenset(
    (
        "as",
        "by",
        "from",
        "how",
        "in",
        "of",
        "that",
        "what",
        "where",
        "whether",
        "which",
        "who",
        "whose",
    )
)
BANNED = re.compile(
    r"\b(anew|whoever|goes on where|gives? (its|the) device back|saying a verb|last wish"
    r"|gets the story|(is|are) no numbers?|mend (it|the|what)|as plan\.json has it|that is none"
    r"|cannot be had|is failed|what of a)\b",
    re.IGNORECASE,
)
MOST_CHARACTERS = 320
"""Of the constant text of a message: what happened, the value and the remedy fit into that."""
MESSAGES = {"RunError", "ApiError", "TunesmithError", "message", "warning", "error", "info", "fail"}


def tracked(*patterns: str) -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return [Path(name) for name in names if (ROOT / name).exists()]


def product_files() -> list[Path]:
    return [path for path in tracked("*.py") if str(path).startswith((*PRODUCT, "worker/"))]


def openers(tree: ast.Module) -> Iterator[str]:
    """First words of the docstrings of a file's module, classes and functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text.split()[0].lower().strip(",.:;")


def message_lengths(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Line and number of constant characters of every text given to a call that tells users."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in MESSAGES:
                for argument in [*node.args, *(k.value for k in node.keywords)]:
                    parts = [
                        part.value
                        for part in ast.walk(argument)
                        if isinstance(part, ast.Constant) and isinstance(part.value, str)
                    ]
                    yield node.lineno, sum(map(len, parts))


def test_docstrings_open_with_a_noun_phrase_or_a_verb() -> None:
    clauses = [
        f"{path}: {word}"
        for path in product_files()
        for word in openers(ast.parse((ROOT / path).read_text()))
        if word in CLAUSE_OPENERS
    ]
    assert clauses == []


def test_no_page_or_program_has_a_banned_phrase() -> None:
    found = [
        f"{path}:{number}: {match[0]}"
        for path in tracked("*.py", "*.md")
        if path.name != Path(__file__).name and "log" not in path.parts
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1)
        if (match := BANNED.search(line))
    ]
    assert found == []


def test_messages_are_short() -> None:
    long = [
        f"{path}:{line}: {length} characters"
        for path in product_files()
        for line, length in message_lengths(ast.parse((ROOT / path).read_text()))
        if length > MOST_CHARACTERS
    ]
    assert long == []


@pytest.mark.parametrize(
    ("code", "openers_found", "longest"),
    [
        ('"""Of the run."""', ["of"], 0),
        ('def f():\n "Return x."', ["return"], 0),
        ('raise RunError(code, f"{name} " "is wrong", hint="x")', [], 9),
    ],
)
def test_the_rules_see_what_they_are_for(code: str, openers_found: list[str], longest: int) -> None:
    tree = ast.parse(code)
    assert list(openers(tree)) == openers_found
    assert max((length for _, length in message_lengths(tree)), default=0) == longest
