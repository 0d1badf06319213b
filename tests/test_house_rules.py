"""Rules of the house that a machine can check."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_LINES = 400
BANNED_NAMES = {"utils.py", "helpers.py", "common.py", "misc.py"}


def python_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def test_no_file_is_longer_than_400_lines() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in python_files()
        if (count := len(path.read_text().splitlines())) > MOST_LINES
    }
    assert long == {}


def test_files_are_named_for_what_they_hold() -> None:
    assert [path for path in python_files() if path.name in BANNED_NAMES] == []


def test_every_file_opens_with_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files()
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_the_environment_is_read_in_settings_only() -> None:
    """Elsewhere a process environment is only handed on to a child."""
    allowed = {
        "server/tunesmith_server/settings.py",
        "worker/tunesmith_worker/settings.py",
    }
    readers = set()
    for path in python_files():
        name = str(path.relative_to(ROOT))
        if not name.startswith(("server/", "worker/")) or name in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and ast.unparse(node.func) in ("os.getenv", "os.environ.get")
                and node.args
                and isinstance(node.args[0], ast.Constant)
                and str(node.args[0].value).startswith("TUNESMITH_")
            ):
                readers.add(name)
    assert readers == set()


def test_the_readme_names_every_top_level_folder() -> None:
    readme = (ROOT / "README.md").read_text()
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    folders = {name.split("/")[0] for name in tracked if "/" in name} - {".ci"}
    assert [folder for folder in sorted(folders) if f"{folder}/" not in readme] == []
