"""Links between pages: every file and every anchor exists."""

from __future__ import annotations

import re
from pathlib import Path

from .blocks import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").glob("*.md")])
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]+)\)")
CODE = ("benchmarks", "client", "docker", "kernels", "schema", "server", "tests", "worker")
_FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


def test_every_link_leads_to_a_file_and_an_anchor() -> None:
    broken = []
    for page in PAGES:
        for link in _LINK.findall(_FENCE.sub("", page.read_text())):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_code_names_pages_that_exist() -> None:
    """Hints and docstrings that name `docs/...` name a page or folder of today."""
    names = {
        name
        for folder in CODE
        for file in (ROOT / folder).rglob("*")
        if file.suffix in {".py", ".yml"} and file != Path(__file__)
        for name in re.findall(r"(?<![\w./])docs/(?!test_)[\w/.-]*\w", file.read_text())
    }
    assert {name for name in names if not list(ROOT.glob(f"{name}*"))} == set()


def test_the_map_names_files_that_exist() -> None:
    page = (ROOT / "docs" / "contributing" / "map.md").read_text()
    packages = ("worker/tunesmith_worker", "server/tunesmith_server", "client/tunesmith")
    places = (ROOT, *(ROOT / package for package in packages))
    names = re.findall(r"`([\w./]+(?:\.py|\.md|/))`", page)
    inside = {name: re.sub(r"^(schema|kernels)/", r"\1/tunesmith_\1/", name) for name in names}
    assert len(names) > 80
    assert [
        name
        for name in names
        if not any((place / path).exists() for place in places for path in (name, inside[name]))
    ] == []
