"""`tunesmith run RUN_DIR --compare-stock N`: two curves, and a verdict that can be no."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunesmith_worker import compare
from tunesmith_worker.compare import Side, compare_stock

from .conftest import MakeRun
from .runs import QUESTIONS

ROWS = [{"prompt": row["question"], "completion": " " + row["answer"]} for row in QUESTIONS]


def test_both_curves_are_printed_and_agree(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(ROWS, recipe={"learning_rate": 1e-2})
    before = sorted(path.name for path in run.rglob("*"))
    assert compare_stock(run, 3) == 0
    printed = capsys.readouterr().out
    assert "patched 2 x attention_block, 1 x loss, 2 x mlp_block" in printed
    assert [line.split()[0] for line in printed.splitlines() if line[:6].strip().isdigit()] == [
        *"123"
    ]
    assert "equals the stock one on this data" in printed
    assert sorted(path.name for path in run.rglob("*")) == before, "RUN_DIR is only read"


def test_dropout_is_left_out_of_the_comparison(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """Padded rows and rows end to end draw other masks: their curves part for no fault of ours."""
    lora = {"r": 8, "lora_dropout": 0.3}
    run = make_run(ROWS, recipe={"learning_rate": 1e-2, "lora": lora})
    assert compare_stock(run, 3) == 0
    assert "without lora_dropout" in capsys.readouterr().out


def test_curves_that_part_are_called_so(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(run: Path) -> Side:
        losses = [3.0, 2.0] if run.name == "stock" else [3.0, 2.001]
        return Side(losses=losses, tokens_per_second=1.0, precision="fp32", patched="patched it")

    monkeypatch.setattr(compare, "_train", lambda run: None)
    monkeypatch.setattr(compare, "_read", read)
    assert compare_stock(make_run(ROWS), 2) == 1
    printed = capsys.readouterr().out
    assert "MORE THAN 1e-05" in printed
    assert "equals the stock one" not in printed


def test_a_side_that_fails_says_why(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = make_run(ROWS, model_path=str(tmp_path / "absent"))
    assert compare_stock(run, 2) == 1
    assert "there is no folder" in capsys.readouterr().out
