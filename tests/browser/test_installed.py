"""Which browser the tests use, and what a run without one says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from . import installed, skipped


def test_a_given_browser_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("chromium", "given"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.delenv(installed.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert installed.system_browser() == tmp_path / "chromium"
    monkeypatch.setenv(installed.VARIABLE, str(tmp_path / "given"))
    assert installed.system_browser() == tmp_path / "given"
    monkeypatch.setenv(installed.VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(installed.NoBrowser, match="absent"):
        installed.system_browser()


def test_packages_are_pinned_by_hash() -> None:
    lock = json.loads((Path(__file__).parent / "package-lock.json").read_text())
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert packages["node_modules/@sparticuz/chromium"]["version"] == "153.0.0"
    assert packages["node_modules/axe-core"]["version"] == "4.14.1"
    assert [n for n, e in packages.items() if not e["integrity"].startswith("sha512-")] == []


def test_without_a_browser_the_last_line_says_how_many_tests_were_skipped() -> None:
    def skip(*marks: str) -> pytest.TestReport:
        place = ("file.py", 1, "Skipped: no browser")
        keywords: dict[str, Literal[1]] = dict.fromkeys(marks, 1)
        return pytest.TestReport("id", ("file.py", 1, "id"), keywords, "skipped", place, "setup")

    reports = [skip("browser"), skip("gpu"), skip("browser")]
    assert skipped.summary(reports) == "2 browser tests were skipped: no browser"
    assert skipped.summary([skip("gpu")]) is None
