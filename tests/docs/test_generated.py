"""Generated pages are current, and what a page says of tests and codes is so."""

from __future__ import annotations

import re
import runpy
from dataclasses import fields
from pathlib import Path

from tunesmith_schema import ErrorCode
from tunesmith_schema.variables import PREFIX, VARIABLES
from tunesmith_worker.process import SpawnSettings

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
REFERENCE = DOCS / "reference"


def test_the_recipe_page_is_what_the_schema_gives() -> None:
    page = runpy.run_path(str(DOCS / "generate.py"))["recipe_page"]()
    assert (REFERENCE / "recipe.md").read_text() == page, "run: python docs/generate.py"


def test_the_settings_page_is_what_the_classes_give() -> None:
    page = runpy.run_path(str(DOCS / "generate.py"))["settings_page"]()
    assert (REFERENCE / "settings.md").read_text() == page, "run: python docs/generate.py"


def test_the_names_that_misspellings_are_held_against_are_all_there_are() -> None:
    rows = (REFERENCE / "settings.md").read_text().splitlines()
    documented = {
        row.split("`")[1] for row in rows if re.match(r"\| `\w+` \| (server|worker|cl)", row)
    }
    from_supervisors = {f"{PREFIX}{field.name.upper()}" for field in fields(SpawnSettings)}
    assert documented | from_supervisors == VARIABLES | {"AWS_SECRET_ACCESS_KEY"}


def test_the_table_of_bad_input_names_tests_that_exist_and_codes_that_are_used() -> None:
    page = (REFERENCE / "bad-input.md").read_text()
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
