"""What others may use of a kernel file stands in its `__all__`, and nobody uses more."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "kernels" / "tunesmith_kernels"
FILES = sorted(PACKAGE.glob("*.py"))


def surface(file: Path) -> list[str]:
    """`__all__` of a file, which is not imported: some need triton."""
    for node in ast.parse(file.read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=names):
                return list(ast.literal_eval(names))
            case ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.List() as names):
                return list(ast.literal_eval(names))
    raise AssertionError(f"{file.name} has no __all__")


def defined(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]):
                names.add(name)
    return names


def imported() -> set[tuple[str, str]]:
    """(module, name) of what our files take from a kernel file."""
    found = set()
    for folder in ("kernels", "worker", "benchmarks"):
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text()
            if file.parent != PACKAGE and "tunesmith_kernels" not in text:
                continue  # parsing all files would take seconds
            for node in ast.walk(ast.parse(text)):
                if not isinstance(node, ast.ImportFrom):
                    continue
                module = node.module or ""
                if node.level == 1 and file.parent == PACKAGE:
                    module = f"tunesmith_kernels.{module}"
                if module.startswith("tunesmith_kernels."):
                    found |= {(module.partition(".")[2], alias.name) for alias in node.names}
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_kernel_file_says_what_is_public(file: Path) -> None:
    names = surface(file)
    assert len(names) == len(set(names))
    assert set(names) <= defined(file)


def test_nobody_imports_what_is_not_public() -> None:
    uses = imported()
    assert ("attention", "segment_attention") in uses
    assert {use for use in uses if use[1] not in surface(PACKAGE / f"{use[0]}.py")} == set()
