"""A run that was interrupted at any step ends, bit for bit, as one that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, read_result
from tunesmith_schema import EventKind, Plan
from tunesmith_worker.trainer.run import main

from .interrupted import interrupt, metrics_of, resume_points, weights_hash

STEPS = 7
BASE: dict[str, Any] = {
    "max_steps": STEPS,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,  # four steps an epoch
    "learning_rate": 1e-2,
    "warmup_steps": 2,
    "self_check": False,
}
LORA: dict[str, Any] = {"lora": {"r": 4, "lora_dropout": 0.1}}
FULL: dict[str, Any] = {"tuning": "full"}
KINDS: dict[str, dict[str, Any]] = {
    "padding_free": LORA,
    "padded": LORA | {"patches": "off"},
    "packed": LORA | {"packing": True, "max_seq_length": 64},
    "token rows": LORA | {"add_tokens": ["plus", "How much"]},
    "full fp32": FULL | {"precision": "fp32", "from_scratch": True},
    "full bf16": FULL | {"precision": "bf16"},
    "full bf16_split_master": FULL | {"precision": "bf16_split_master"},
    "full bf16_sr8": FULL | {"precision": "bf16_sr8"},
    "sums and cosine": LORA | {"logging_steps": 3, "lr_scheduler_type": "cosine"},
}


def make(make_run: MakeRun, name: str, recipe: dict[str, Any]) -> Path:
    return make_run(QUESTIONS, recipe=BASE | recipe, name=name)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_after_any_step_it_ends_as_if_nothing_had_been(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    recipe = KINDS[kind] | {"save_steps": 1}
    whole = make(make_run, "whole", recipe)
    assert main(whole) == 0
    broken = make(make_run, "broken", recipe)
    assert interrupt(broken, monkeypatch, kill=6) == 1
    assert main(broken) == 0
    (resumed,) = event_data(broken, EventKind.RESUMED)
    assert 0 < resumed["step"] < 6
    assert weights_hash(broken) == weights_hash(whole)
    assert metrics_of(broken) == metrics_of(whole)
    assert read_result(broken).trained_tokens == read_result(whole).trained_tokens
    assert resume_points(broken) == []


def test_a_run_that_is_stopped_again_and_again_agrees_in_validation_too(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = BASE | LORA | {"eval_steps": 2, "logging_steps": 2, "keep": "best"}
    whole = make_run(QUESTIONS, valid=QUESTIONS[:3], recipe=recipe, name="whole")
    assert main(whole) == 0
    broken = make_run(QUESTIONS, valid=QUESTIONS[:3], recipe=recipe, name="broken")
    for step in (1, 4, 6):  # before anything is logged, at an epoch's end, with a validation
        assert interrupt(broken, monkeypatch, stop=step) == 75
        assert resume_points(broken)[-1] == f"resume-{step}"
    assert main(broken) == 0
    assert weights_hash(broken) == weights_hash(whole)
    assert metrics_of(broken) == metrics_of(whole)


def test_a_run_that_has_succeeded_begins_anew(make_run: MakeRun) -> None:
    run = make(make_run, "run", LORA | {"max_steps": 2})
    assert main(run) == 0
    assert main(run) == 0
    assert not event_data(run, EventKind.RESUMED)


def test_an_attempt_with_nothing_to_go_on_from_says_so(make_run: MakeRun) -> None:
    run = make_run(QUESTIONS, recipe=BASE | LORA | {"max_steps": 1}, attempt=2)
    assert main(run) == 0
    assert event_data(run, EventKind.RESUMED) == [{"step": 0}]


def plan_of(run: Path) -> Plan:
    return Plan.model_validate_json((run / "plan.json").read_bytes())
