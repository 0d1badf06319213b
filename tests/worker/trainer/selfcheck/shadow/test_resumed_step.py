"""The first step after a resume point is compared with plain torch too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import MakeRun
from tests.worker.runs import event_data, read_events, read_result
from tests.worker.trainer.checkpoints.interrupted import interrupt, weights_hash
from tests.worker.trainer.selfcheck.planted import failure
from tunesmith_schema import ErrorCode, EventKind, RunReport
from tunesmith_worker.trainer.run import main

from . import faults
from .faults import Plant
from .test_first_policy_step import FULL, make
from .test_first_step import CLIPPED, FOUR, ROWS

Recipe = dict[str, Any]  # Any: JSON
LATER: Recipe = {**FOUR, "max_steps": 5, "learning_rate": 1e-2}


def stopped(
    make_run: MakeRun, patch: pytest.MonkeyPatch, recipe: Recipe, name: str = "run"
) -> Path:
    """Return a run with a resume point of step 2."""
    run = make_run(ROWS, recipe=LATER | recipe, name=name)
    assert interrupt(run, patch, stop=2) == 75
    return run


FAULTS: dict[str, tuple[Plant, Recipe, str]] = {
    "normaliser": (
        faults.doubled_normaliser,
        {},
        "first_step: wrong normaliser: the gradient is 0.5 times",
    ),
    "small updates": (faults.small_updates, {}, "is not AdamW's: the change of"),
    "no clipping": (
        faults.no_clipping,
        CLIPPED | {"max_steps": 5},
        "clipping: the gradient is not clipped",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_second_attempt_is_named(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    plant, recipe, words = FAULTS[name]
    found = failure(stopped(make_run, monkeypatch, recipe), plant)
    assert found.code == ErrorCode.SELF_CHECK_FAILED
    assert found.message.startswith("Step 3: ")
    assert words in found.message


GOOD: dict[str, Recipe] = {
    "dropout": {"lora": {"lora_dropout": 0.2}, "weight_decay": 0.1},
    "packed": {"packing": True, "max_grad_norm": 0.05},
    "rest of an epoch": {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2},
    "bf16": {"precision": "bf16"},
    "full": {"tuning": "full", "weight_decay": 0.1, "lr_scheduler_type": "cosine"},
    "full-bf16": {"tuning": "full", "precision": "bf16"},
    "full-split": {"tuning": "full", "precision": "bf16_split_master"},
    "full-sr8": {"tuning": "full", "precision": "bf16_sr8"},
}


@pytest.mark.parametrize("name", GOOD)
def test_a_resumed_run_proves_its_first_step(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The bits of the run do not change."""
    whole = make_run(ROWS, recipe=LATER | GOOD[name] | {"self_check": False}, name="whole")
    assert main(whole) == 0
    run = stopped(make_run, monkeypatch, GOOD[name])
    assert main(run) == 0, read_result(run).error
    assert weights_hash(run) == weights_hash(whole)
    reports = [d for d in event_data(run, EventKind.MESSAGE) if "first_step" in d]
    assert [report["step"] for report in reports] == [1, 3]
    rows = {"packed": "all 16 rows: ", "rest of an epoch": "all 4 rows: "}.get(name, "all 8 rows: ")
    detail = reports[1]["first_step"]
    assert detail.startswith(f"{rows}loss, gradient norm and gradient equal plain torch")
    assert "weights equals AdamW in plain torch" in detail
    report = RunReport.model_validate_json((run / "report.json").read_bytes())
    assert report.first_step == f"step 3, the first after resuming: {detail}"


def test_a_fork_proves_its_first_step_at_its_own_rate(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stopped(make_run, monkeypatch, {})
    spec = json.loads((run / "spec.json").read_text())
    recipe = spec["recipe"] | {"learning_rate": 3e-3, "lr_scheduler_type": "cosine"}
    (run / "plan.json").unlink()
    (run / "spec.json").write_text(json.dumps(spec | {"recipe": recipe, "forked": True}))
    wrong = Path(shutil.copytree(run, run.with_name("wrong")))
    assert main(run) == 0, read_result(run).error
    reports = [d for d in event_data(run, EventKind.MESSAGE) if "first_step" in d]
    assert reports[-1]["step"] == 3
    assert "Step 3: first_update: the learning rate of" in failure(wrong, faults.small_rate).message


GROUPS: dict[str, Recipe] = {
    "a reference and dropout": {
        "lora": {"r": 4, "lora_dropout": 0.2},
        "grpo": {"beta": 0.1, "num_iterations": 2},
    },
    "full and a reference": {**FULL, "grpo": {"beta": 0.1}},
}


@pytest.mark.parametrize("name", GROUPS)
def test_a_resumed_reinforcement_run_proves_its_first_step(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run = make(make_run, {"max_steps": 4, "learning_rate": 1e-2, **GROUPS[name]})
    assert interrupt(run, monkeypatch, stop=2) == 75
    assert main(run) == 0, read_result(run).error
    reports = [d for d in event_data(run, EventKind.MESSAGE) if "first_step" in d]
    assert [report["step"] for report in reports] == [1, 3]
    assert "loss, gradient norm and gradient equal plain torch" in reports[1]["first_step"]


def test_a_step_on_completions_of_an_earlier_attempt_says_what_was_not_compared(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(make_run, {"max_steps": 4, "grpo": {"num_iterations": 2}})
    assert interrupt(run, monkeypatch, stop=1) == 75
    assert main(run) == 0, read_result(run).error
    messages = [e.message for e in read_events(run) if e.message.startswith("step 2, the first")]
    assert len(messages) == 1
    assert (
        "rewards, advantages, loss and gradient were not compared: the step trains on completions "
        "that an earlier attempt generated and trained on; the update of all"
    ) in messages[0]
