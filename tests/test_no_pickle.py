"""Nothing is pickled: not in the tree, not in what a job writes, not on the way back."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.trainer.checkpoints.interrupted import interrupt
from tunesmith_worker.trainer.run import main

from .test_house_rules import ROOT, python_files
from .worker.conftest import MakeRun, make_run, recipe_defaults, tiny_model
from .worker.runs import QUESTIONS

__all__ = ["make_run", "recipe_defaults", "tiny_model"]  # fixtures

PICKLING = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
MAGIC = (b"PK\x03\x04", b"PK\x05\x06", *(b"\x80" + bytes([n]) for n in range(2, 6)))
"""Of torch.save's zip files, and of pickles."""
NAMES_IT = {"test_no_pickle.py", "test_weights.py"}
"""This file, and one that asks what becomes of a patched model that somebody else pickles."""
SUFFIXES = {".json", ".jsonl", ".safetensors", ".jinja", ".arrow", ".log"}


def pickling_lines(tree: ast.Module) -> list[int]:
    lines = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found = {alias.name.split(".")[0] for alias in names}
            case ast.ImportFrom(module=str(module)):
                found = {module.split(".")[0]}
            case ast.Attribute(value=ast.Name(id="torch"), attr="save" | "load"):
                found = PICKLING
            case ast.keyword(arg="allow_pickle" | "weights_only"):
                found = PICKLING
            case _:
                continue
        if found & PICKLING:
            lines.append(getattr(node, "lineno", 0) or getattr(node, "value", node).lineno)
    return lines


def test_the_tree_pickles_nothing() -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for path in python_files()
        if path.name not in NAMES_IT and (lines := pickling_lines(ast.parse(path.read_text())))
    }
    assert found == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from cloudpickle import dumps",
        "torch.save(x, f)",
        "torch.load(f)",
        "np.load(f, allow_pickle=True)",
    ],
)
def test_every_way_to_pickle_is_found(code: str) -> None:
    assert pickling_lines(ast.parse(code)) == [1]


@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_a_job_writes_and_reads_no_pickle(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tuning: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("torch pickles")

    monkeypatch.setattr(torch, "save", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    recipe: dict[str, Any] = {"max_steps": 4, "save_steps": 2, "self_check": True}
    recipe |= {"tuning": tuning, "add_tokens": ["plus"]}
    run = make_run(QUESTIONS, valid=QUESTIONS[:2], recipe=recipe)
    assert interrupt(run, monkeypatch, stop=3) == 75
    kept = tmp_path / "kept"
    shutil.copytree(run, kept)  # with the resume points, which go once the run has succeeded
    assert main(run) == 0
    files = [path for root in (kept, run) for path in root.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert names >= {"trained.safetensors", "optimizer.safetensors", "manifest.json"}
    assert {path.suffix for path in files if path.name != "progress"} <= SUFFIXES
    assert [path for path in files if path.read_bytes()[:4].startswith(MAGIC)] == []
