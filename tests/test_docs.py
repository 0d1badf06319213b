"""Generated pages are current, and what a page says of tests and codes is so."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from tunesmith_schema import ErrorCode

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"


def test_the_recipe_page_is_what_the_schema_gives() -> None:
    page = runpy.run_path(str(DOCS / "generate.py"))["recipe_page"]()
    assert (DOCS / "recipe.md").read_text() == page, "run: python docs/generate.py"


def test_the_table_of_bad_input_names_tests_that_exist_and_codes_that_are_used() -> None:
    page = (DOCS / "bad-input.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "::" in line]
    assert len(rows) > 50
    for row in rows:
        code, test = (cell.strip() for cell in row.strip("| ").split("|")[-2:])
        match = re.fullmatch(r"`([\w/]+\.py)::(\w+)(?:\[(.+)\])?`", test)
        assert match, row
        source = (TESTS / match[1]).read_text()
        assert f"def {match[2]}(" in source, row
        assert (match[3] or "") in source, row
        assert code.strip("`") in {*ErrorCode, ""}, row
