"""A run directory that nothing can be trained from: one line that says why, and status 2."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, read_result
from tunesmith_worker.rundir.spec import EXIT_UNUSABLE
from tunesmith_worker.trainer.compare_stock import compare_stock
from tunesmith_worker.trainer.run import main


def change(run: Path, **fields: Any) -> None:  # Any: JSON
    spec = json.loads((run / "spec.json").read_text())
    (run / "spec.json").write_text(json.dumps(spec | fields))


def without_spec(run: Path) -> None:
    (run / "spec.json").unlink()


def spec_is_a_folder(run: Path) -> None:
    without_spec(run)
    (run / "spec.json").mkdir()


def spec_is_no_json(run: Path) -> None:
    (run / "spec.json").write_text("{'model': 1}")


def spec_is_a_list(run: Path) -> None:
    (run / "spec.json").write_text("[]")


def data_is_missing(run: Path) -> None:
    (run / "data" / "train.jsonl").unlink()


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no spec.json": (without_spec, "file not found: {run}/spec.json"),
    "a folder": (spec_is_a_folder, "cannot read {run}/spec.json: Is a directory"),
    "no JSON": (spec_is_no_json, "spec.json: Invalid JSON: key must be a string at line 1"),
    "a list": (spec_is_a_list, "spec.json: must be an object"),
    "an unknown field": (
        lambda run: change(run, modle="m"),
        "unknown field 'modle': did you mean 'model'?",
    ),
    "a field's value": (
        lambda run: change(run, recipe={"lora": {"r": 0}}),
        "spec.json: recipe.lora.r: must be at least 1",
    ),
    "no validation file": (
        lambda run: change(run, recipe={"keep": "best"}),
        "spec.json: recipe.keep: requires evaluations, but there is no validation_file: set",
    ),
    "a field of several types": (
        lambda run: change(run, recipe={"packing": "maybe"}),
        "spec.json: recipe.packing: must be true or false, or 'auto'",
    ),
    "several": (
        lambda run: change(run, recipe={"max_steps": 0}, seed=-1),
        " (first of 2 errors)",
    ),
    "an absolute path": (
        lambda run: change(run, training_file="/data/train.jsonl"),
        "training_file must be a path inside the run directory, got /data/train.jsonl",
    ),
    "a path that leaves": (
        lambda run: change(run, validation_file="../other/valid.jsonl"),
        "validation_file must be a path inside the run directory, got ../other/valid.jsonl",
    ),
    "no data": (data_is_missing, "training_file: file not found: {run}/data/train.jsonl"),
    "data that is a folder": (
        lambda run: change(run, training_file="data"),
        "training_file: not a file: {run}/data",
    ),
    "no model": (
        lambda run: change(run, model_path="/nowhere/model"),
        "Model 'acme/tiny': folder not found: /nowhere/model",
    ),
}


@pytest.mark.parametrize("compared", [False, True], ids=["run", "--compare-stock"])
@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_wrong_is_told_in_a_line(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str], name: str, compared: bool
) -> None:
    run = make_run(QUESTIONS)
    damage, words = DAMAGES[name]
    damage(run)
    assert (compare_stock(run, 2) if compared else main(run)) == 2
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0].startswith("error: ")
    assert words.format(run=run) in lines[0]
    assert [line.partition(":")[0] for line in lines[1:]] in ([], ["hint"])
    assert (run / "result.json").exists() == (not compared), "compare only reads"
    if not compared:
        error = read_result(run).error
        assert error is not None
        assert lines[0] == f"error: {error.message}"


def test_the_link_that_is_advised_leads_to_the_file(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(QUESTIONS)
    mine = run.parent / "mine.jsonl"
    mine.write_text("a row of mine")
    change(run, training_file="../mine.jsonl")
    assert main(run) == 2
    advised = capsys.readouterr().err.partition("create a link: ")[2].partition(",")[0]
    subprocess.run(advised.split(), check=True)
    assert (run / "data" / "mine.jsonl").read_text() == "a row of mine"


@pytest.mark.parametrize("compared", [False, True])
def test_a_folder_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], compared: bool
) -> None:
    run = tmp_path / "nowhere"
    assert (compare_stock(run, 2) if compared else main(run)) == 2
    assert f"error: folder not found: {run}\n" in capsys.readouterr().err
    assert not run.exists()


def test_a_foreseen_failure_is_told_without_a_traceback(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(QUESTIONS, recipe={"max_steps": 1, "max_seq_length": 1000})
    assert main(run) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert "error: recipe.max_seq_length=1000 is more than the model's context of 256" in err
    assert "hint: With 'auto', the length is" in err


LAST = """
import os, runpy, sys, tempfile
class TornDown:
    def __del__(self, write=os.write):
        write(1, b"torn down")
sys.kept = TornDown()
folder = tempfile.TemporaryDirectory()
print(folder.name, end="")
sys.argv[1:] = ["/no/such/run"]
runpy.run_module("tunesmith_worker.trainer", run_name="__main__")
"""


def test_a_trainer_leaves_without_being_torn_down_and_cleans_up() -> None:
    """Tearing torch down takes seconds on busy cores, for which a worker would wait."""
    done = subprocess.run([sys.executable, "-c", LAST], capture_output=True, text=True, timeout=60)
    assert done.returncode == EXIT_UNUSABLE
    assert "/no/such/run" in done.stderr
    assert "torn down" not in done.stdout
    assert done.stdout, "what was printed last is written out"
    assert not Path(done.stdout).exists()
