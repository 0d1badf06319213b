"""Generated pages are current."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_recipe_page_is_what_the_schema_gives() -> None:
    page = runpy.run_path(str(DOCS / "generate.py"))["recipe_page"]()
    assert (DOCS / "recipe.md").read_text() == page, "run: python docs/generate.py"
