"""`tunesmith run RUN_DIR --compare-stock`: two curves, and a verdict that can be no."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, read_result
from tunesmith_schema import ErrorCategory, ErrorCode, JobFailure, RunSpec
from tunesmith_worker.engine.patches import half_blocks
from tunesmith_worker.rundir.spec import read_spec
from tunesmith_worker.trainer import compare_stock as compare
from tunesmith_worker.trainer.compare_stock import compare_stock
from tunesmith_worker.trainer.run import main

ROWS = [{"prompt": row["question"], "completion": " " + row["answer"]} for row in QUESTIONS]
RECIPE = {"learning_rate": 1e-2}


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers that need not be started, and that a test can break."""

    def train(run: Path) -> JobFailure | None:
        return None if main(run) == 0 else read_result(run).error

    monkeypatch.setattr(compare, "_train", train)


def test_both_curves_are_printed_and_agree(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """With trainers of their own, as users have it."""
    run = make_run(ROWS, recipe=RECIPE)
    before = sorted(path.name for path in run.rglob("*"))
    assert compare_stock(run, 3) == 0
    printed = capsys.readouterr().out
    assert "patched 2 x attention_block, 1 x loss, 2 x mlp_block" in printed
    assert [line.split()[0] for line in printed.splitlines() if line[:6].strip().isdigit()] == [
        *"123"
    ]
    assert "tokens per second of wall time (stock ran first, then ours): stock " in printed
    assert "agrees with the stock trainer on this data" in printed
    assert "bf16" not in printed
    assert sorted(path.name for path in run.rglob("*")) == before, "RUN_DIR is only read"


def test_a_reinforcement_run_is_sent_to_its_self_check(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    grader = {"type": "length", "target": 4, "limit": 9}
    run = make_run([{"prompt": "How much?"}], method="reinforcement", grader=grader)
    assert compare_stock(run, 3) == 2
    assert "self_check" in capsys.readouterr().err


def test_what_evaluations_decide_is_left_out_of_the_comparison(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run(ROWS, valid=ROWS[:3], recipe={"early_stopping": {}, "keep": "best"})
    compare._prepare(tmp_path / "side", run, read_spec(run), {}, 3)
    side = read_spec(tmp_path / "side")
    assert (side.validation_file, side.recipe.keep, side.recipe.max_steps) == (None, "last", 3)


@pytest.mark.usefixtures("in_this_process")
def test_dropout_is_left_out_of_the_comparison(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """Padded rows and rows end to end draw other masks: their curves part for no fault of ours."""
    run = make_run(ROWS, recipe=RECIPE | {"lora": {"r": 8, "lora_dropout": 0.3}})
    assert compare_stock(run, 3) == 0
    assert "lora_dropout is set to 0" in capsys.readouterr().out


@pytest.mark.usefixtures("in_this_process")
def test_bf16_is_measured_by_stock_in_fp32_which_is_said_to_cost(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(ROWS, recipe=RECIPE | {"precision": "bf16"})
    assert compare_stock(run, 4) == 0
    out = capsys.readouterr().out
    order = (
        "stock: 4",
        "ours: 4",
        "the two trainers round bf16 differently",
        "stock in fp32: 4",
        "ours in fp32: 4",
    )
    found = [out.index(words) for words in order]
    assert found == sorted(found)
    assert "RMS error of the bf16 loss, relative to fp32: stock trainer " in out


@pytest.mark.parametrize(("given", "used"), [("auto", False), (False, False), (True, True)])
def test_no_layout_is_measured_that_would_leave_our_kernels_out(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, given: object, used: bool
) -> None:
    seen: list[object] = []

    def failing(run: Path) -> JobFailure:
        spec = RunSpec.model_validate_json((run / "spec.json").read_bytes())
        seen.append(spec.recipe.packing)
        return JobFailure(
            category=ErrorCategory.INFRASTRUCTURE, code=ErrorCode.TRAINER_CRASHED, message="no"
        )

    monkeypatch.setattr(compare, "_train", failing)
    assert compare_stock(make_run(ROWS, recipe={"packing": given}), 30) == 1
    assert seen == [used]


def one_percent_more(
    monkeypatch: pytest.MonkeyPatch, name: str, only: torch.dtype | None = None
) -> None:
    """Breaks a kernel that the patches call: for all dtypes, or for one alone."""
    kernel = getattr(half_blocks, name)

    def faulty(x: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:  # Any: the kernel's own
        y: torch.Tensor = kernel(x, *rest, **named)
        return y * 1.01 if only in (None, x.dtype) else y

    monkeypatch.setattr(half_blocks, name, faulty)


def assert_called_different(printed: str) -> None:
    assert "MORE THAN" in printed
    assert "DIFFERS from the stock trainer" in printed
    assert "agrees with the stock trainer" not in printed


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_kernel_that_is_wrong_by_one_percent_is_found(
    make_run: MakeRun,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    precision: str,
) -> None:
    one_percent_more(monkeypatch, "segment_attention")
    assert compare_stock(make_run(ROWS, recipe=RECIPE | {"precision": precision}), 4) == 1
    assert_called_different(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
def test_a_kernel_that_is_wrong_in_bf16_alone_is_found_on_a_real_model(
    make_run: MakeRun,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    shared_data: Path,
) -> None:
    """On a random model, whose loss hardly depends on anything, it drowns in rounding."""
    one_percent_more(monkeypatch, "lora_linear", only=torch.bfloat16)
    lines = (shared_data / "gsm8k" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    recipe = {
        "precision": "bf16", "max_seq_length": 128, "overlong": "truncate",
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1,
    }  # fmt: skip
    run = make_run(
        [json.loads(line) for line in lines[:40]],
        recipe=recipe,
        model_path=str(shared_data / "models" / "tiny-math"),
    )
    assert compare_stock(run, 4) == 1
    printed = capsys.readouterr().out
    assert_called_different(printed)
    bad = [line for line in printed.splitlines() if "MORE THAN" in line]
    assert all(line.startswith("RMS error of the bf16") for line in bad)


@pytest.mark.usefixtures("in_this_process")
def test_a_gradient_that_is_wrong_by_a_factor_is_found_though_adam_hides_it(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tunesmith_kernels import lora

    stock = lora._a_gradients
    monkeypatch.setattr(lora, "_a_gradients", lambda *given: [g * 1.01 for g in stock(*given)])
    assert compare_stock(make_run(ROWS, recipe=RECIPE), 4) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "of the loss" in line and "within" in line]
    assert [line for line in lines if "of the gradient norm" in line and "MORE THAN" in line]


@pytest.mark.usefixtures("in_this_process")
def test_a_side_that_fails_for_the_users_own_reason_says_it_and_ends_with_2(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run([*ROWS, {"prompt": "a", "completion": ""}], recipe=RECIPE)
    assert compare_stock(run, 2) == 2
    said = "error: stock: train.jsonl, row 17: completion is empty\nhint: "
    assert said in capsys.readouterr().err


def test_a_side_that_crashes_ends_with_1(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    assert compare_stock(make_run(ROWS), 2) == 1
    assert "error: stock: the trainer ended with status 1" in capsys.readouterr().err
