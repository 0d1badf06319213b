"""What is asked of evaluations, without a file to evaluate on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, read_events
from tests.worker.trainer.grpo.test_exactness import BASE, GRPO
from tunesmith_worker.trainer.run import main

PROMPTS = [{"prompt": f"How much is {a} plus {a}?", "answer": str(2 * a)} for a in range(6)]
GRADER = {"type": "math_answer", "reference": "{{item.answer}}"}
REINFORCED = {"method": "reinforcement", "grader": GRADER}


@pytest.mark.parametrize(
    ("rows", "asked", "names"),
    [
        (QUESTIONS, {"recipe": {"eval_steps": 1, "max_steps": 1}}, ["recipe.eval_steps=1"]),
        (
            PROMPTS,
            REINFORCED
            | {"recipe": BASE | {"grpo": GRPO, "max_steps": 1}}
            | {"hyperparameters": {"eval_interval": 2, "eval_samples": 3}},
            ["hyperparameters.eval_interval=2", "hyperparameters.eval_samples=3"],
        ),
    ],
)
def test_it_has_no_effect_and_that_is_said(
    make_run: MakeRun, rows: list[dict[str, str]], asked: dict[str, Any], names: list[str]
) -> None:
    run = make_run(rows, **asked)
    assert main(run) == 0
    said = [one.message for one in read_events(run) if "settings are ignored" in one.message]
    assert {one.level for one in read_events(run) if one.message in said} == {"warn"}
    assert said == [
        f"{name}: evaluation settings are ignored without a validation file. "
        "Add a validation file to the job, or remove the setting."
        for name in names
    ]
