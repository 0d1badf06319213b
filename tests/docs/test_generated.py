"""Generated pages are current, and what a page says of tests and codes is so."""

from __future__ import annotations

import re
import runpy
from dataclasses import fields
from pathlib import Path

from tunesmith_schema import ErrorCode
from tunesmith_schema.variables import PREFIX, VARIABLES
from tunesmith_server.app import create_app
from tunesmith_server.core.settings import Settings
from tunesmith_worker.rundir.process import SpawnSettings

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
        row.split("`")[1] for row in rows if re.match(r"\| `\w+` \| (server|worker|inf|cl)", row)
    }
    from_supervisors = {f"{PREFIX}{field.name.upper()}" for field in fields(SpawnSettings)}
    assert documented | from_supervisors == VARIABLES | {"AWS_SECRET_ACCESS_KEY"}


def test_every_case_of_bad_input_has_a_code_in_use_and_a_test() -> None:
    cases = table(TESTS / "bad_input.md", columns=4)
    assert len(cases) > 50
    assert {code.strip("`") for _, _, code, _ in cases if code} <= {*ErrorCode}
    for case, _, _, test in cases:
        match = re.fullmatch(r"`([\w/]+\.py)::(\w+)(?:\[(.+)\])?`", test)
        assert match, case
        source = (TESTS / match[1]).read_text()
        assert f"def {match[2]}(" in source, case
        assert (match[3] or "") in source, case


def test_every_code_is_on_the_page_of_errors() -> None:
    page = (REFERENCE / "errors.md").read_text()
    assert [code for code in ErrorCode if f"`{code}`" not in page] == []


def test_every_route_is_on_the_page_of_the_api(tmp_path: Path) -> None:
    page = (REFERENCE / "api.md").read_text()
    paths = create_app(Settings(data_dir=tmp_path)).openapi()["paths"]
    public = [path for path in paths if not path.startswith("/internal")]
    assert [path for path in public if not {path, path[path.rindex("/") :]} & shown(page)] == []


PREFIXES = {"JOB/": "/v1/fine_tuning/jobs/{job_id}/", "/": "/v1/organization/"}
"""Abbreviations at the start of a path on the page of the API."""


def shown(page: str) -> set[str]:
    """Paths in a page's code spans, without the methods before them."""
    paths = {path for span in re.findall(r"`([^`\n]+)`", page) for path in span.split()}
    full = {
        prefix + path.removeprefix(short)
        for short, prefix in PREFIXES.items()
        for path in paths
        if path.startswith(short)
    }
    return paths | full


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text()
    pages = [page for page in DOCS.rglob("*.md") if not {"decisions", "log"} & {*page.parts}]
    names = [str(page.relative_to(DOCS)) for page in pages if page.name != "index.md"]
    assert [name for name in names if f"({name})" not in index] == []


def table(page: Path, *, columns: int) -> list[list[str]]:
    """Cells of every row in tables of so many columns, without head and rule."""
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in page.read_text().splitlines()
        if line.startswith("| ")
    ]
    return [row for row in rows if len(row) == columns and row[0] != "case"]
