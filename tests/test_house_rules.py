"""Rules of the house that a machine can check."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from .long_tail import ROWS
from .long_tail.table import ALL
from .server.databases import ON_POSTGRESQL, ON_SQLITE_ALONE, ONE_VALUE_ON_POSTGRESQL

ROOT = Path(__file__).parents[1]
MOST_LINES = 400
MOST_ENTRIES, MOST_FILES = 9, 20
"""Entries at the top of the worker's package, and files in each of its folders."""
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


def test_the_worker_is_a_tree_of_small_folders() -> None:
    top = Path("worker/tunesmith_worker")
    listed = subprocess.run(
        ["git", "ls-files", str(top)], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    files = [Path(name) for name in listed if (ROOT / name).exists()]
    assert len({path.relative_to(top).parts[0] for path in files}) <= MOST_ENTRIES
    sizes = Counter(str(path.parent) for path in files)
    assert {folder: count for folder, count in sizes.items() if count > MOST_FILES} == {}


def test_files_are_named_for_what_they_hold() -> None:
    assert [path for path in python_files() if path.name in BANNED_NAMES] == []


def test_every_file_opens_with_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files()
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_training_compiles_nothing() -> None:
    """Inductor compiles some autograd functions wrongly, so product code does not call it."""
    calls = [path for path in python_files() if "torch.compile(" in path.read_text()]
    outside = {path.relative_to(ROOT).parts[0] for path in calls} - {"tests"}
    assert outside == {"benchmarks"}


def test_the_environment_is_read_in_settings_only() -> None:
    """One place for each kind of process; elsewhere an environment is only handed on, whole."""
    readers = {
        "server/tunesmith_server/core/settings.py",
        "worker/tunesmith_worker/supervisor/settings.py",
        "worker/tunesmith_worker/inference/settings.py",
        "worker/tunesmith_worker/rundir/process.py",  # a trainer's: standard library only
        "client/tunesmith/_http/settings.py",
    }
    parts = ("client/", "kernels/", "migrations/", "schema/", "server/", "worker/")
    found = {
        name: lines
        for path in python_files()
        if (name := str(path.relative_to(ROOT))).startswith(parts)
        and (lines := lines_that_read_the_environment(ast.parse(path.read_text())))
    }
    assert {name: lines for name, lines in found.items() if name not in readers} == {}
    assert found.keys() == readers


def lines_that_read_the_environment(tree: ast.Module) -> list[int]:
    handed_on = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):  # {**os.environ}
            handed_on |= {id(v) for k, v in zip(node.keys, node.values, strict=True) if k is None}
        elif isinstance(node, ast.Call):
            handed_on |= {id(argument) for argument in node.args}  # f(os.environ)
            if isinstance(node.func, ast.Attribute) and node.func.attr == "items":
                handed_on.add(id(node.func.value))
    lines = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr="getenv" | "getenvb" | "environb"):
                lines.append(node.lineno)
            case ast.Attribute(value=ast.Name(id="os"), attr="environ") if (
                id(node) not in handed_on
            ):
                lines.append(node.lineno)
            case ast.ImportFrom(module="os", names=names) if {"environ", "getenv"} & {
                alias.name for alias in names
            }:
                lines.append(node.lineno)
            case ast.keyword(arg="envvar"):  # typer reads it
                lines.append(node.value.lineno)
            case ast.ClassDef(bases=bases) if any("BaseSettings" in ast.unparse(b) for b in bases):
                lines.append(node.lineno)
    return lines


@pytest.mark.parametrize(
    "code",
    [
        "os.environ['A']",
        "os.environ.get('A')",
        "'A' in os.environ",
        "os.getenv('A')",
        "from os import environ",
        "Option(envvar='A')",
        "class S(BaseSettings): ...",
    ],
)
def test_every_way_to_read_the_environment_is_found(code: str) -> None:
    assert lines_that_read_the_environment(ast.parse(code)) == [1]


def test_the_map_names_every_top_level_folder() -> None:
    page = (ROOT / "docs" / "contributing" / "map.md").read_text()
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    folders = {name.split("/")[0] for name in tracked if "/" in name} - {".ci"}
    assert [folder for folder in sorted(folders) if f"`{folder}/`" not in page] == []


def test_the_files_on_postgresql_exist() -> None:
    folder = ROOT / "tests" / "server"
    named = ON_POSTGRESQL | ONE_VALUE_ON_POSTGRESQL
    assert {path.stem for path in folder.rglob("test_*.py")} >= named
    assert not ON_POSTGRESQL & ONE_VALUE_ON_POSTGRESQL


def test_the_tests_on_sqlite_alone_exist() -> None:
    for file, tests in ON_SQLITE_ALONE.items():
        assert tests - {ALL} <= functions_of(ROOT / "tests" / "server" / file), file


def test_the_long_tail_names_tests_that_exist() -> None:
    for file, tests in ROWS.items():
        path = ROOT / "tests" / file
        assert path.exists(), file
        if path.is_file():
            assert tests.keys() - {ALL} <= functions_of(path), file


def functions_of(module: Path) -> set[str]:
    tree = ast.parse(module.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
