"""Small numbers in messages."""

from __future__ import annotations

import ast
import re
from importlib.resources import files
from pathlib import Path

from tunesmith_worker.engine.scientific import scientific


def test_zero_has_no_exponent() -> None:
    assert [scientific(value) for value in (0.0, -0.0, 1.24e-5, float("nan"))] == [
        "0", "0", "1.2e-05", "nan",
    ]  # fmt: skip
    assert scientific(1.6e-5, 0) == "2e-05"


def test_details_of_checks_print_measured_values_with_this_function() -> None:
    """Texts of passed checks show values that may be zero."""
    folder = Path(str(files("tunesmith_worker"))) / "trainer" / "selfcheck"
    wrong = [
        f"{path.name}: {ast.unparse(text)}"
        for path in sorted(folder.rglob("*.py"))
        for text in ast.walk(ast.parse(path.read_text()))
        if isinstance(text, ast.JoinedStr)
        and re.search(r"within \{[^}]*:\.\de\}", ast.unparse(text))
    ]
    assert not wrong
