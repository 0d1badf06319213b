"""Fixtures of the worker's tests: a tiny model, and run directories that use it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tunesmith_schema import Recipe, RunSpec

from ..tiny_model import make_tiny_model

# Any: recipes and rows are JSON
MakeRun = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def recipe_defaults() -> dict[str, Any]:
    """Recipe of every run unless a test says otherwise. The self-check takes a fifth of a tiny run;
    the tests in `trainer/selfcheck` and of whole services leave it on. The tests in
    `trainer/evaluation` evaluate the result."""
    return {"self_check": False, "evaluate": False}


@pytest.fixture
def make_run(tiny_model: Path, tmp_path: Path, recipe_defaults: dict[str, Any]) -> MakeRun:
    """Makes a run directory: `make_run(rows, valid=rows, recipe={...}, name="run", **spec)`."""

    def make(
        rows: list[dict[str, Any]],
        *,
        valid: list[dict[str, Any]] | None = None,
        recipe: dict[str, Any] | None = None,
        name: str = "run",
        **spec: Any,
    ) -> Path:
        folder = tmp_path / name
        (folder / "data").mkdir(parents=True)
        _write_rows(folder / "data" / "train.jsonl", rows)
        if valid is not None:
            _write_rows(folder / "data" / "valid.jsonl", valid)
        fields = {
            "job_id": "ftjob-1",
            "attempt": 1,
            "model": "acme/tiny",
            "model_path": str(tiny_model),
            "training_file": "data/train.jsonl",
            "validation_file": "data/valid.jsonl" if valid is not None else None,
            "seed": 7,
            "recipe": Recipe.model_validate(recipe_defaults | (recipe or {})),
        }
        (folder / "spec.json").write_text(RunSpec(**{**fields, **spec}).model_dump_json())
        return folder

    return make


@pytest.fixture(autouse=True)
def sigterm_restored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    default = Path(__file__).parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("TUNESMITH_TEST_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no shared test data at {folder} (set TUNESMITH_TEST_DATA)")
    return folder
