"""What a reinforcement run tells: scores by their graders' names, settings that hardly go together,
prompts that no completion fits beside.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev, stdev
from typing import Any

import pytest

from tests.worker.conftest import MakeRun
from tests.worker.runs import event_data, read_events, read_result
from tests.worker.trainer.checkpoints.interrupted import interrupt
from tunesmith_schema import EventKind, GRPORecipe
from tunesmith_worker.trainer.methods.rollouts import RolloutRunner
from tunesmith_worker.trainer.run import main

from .test_exactness import BASE, GRPO

ROWS = [{"prompt": f"How much is {a} plus {a}?", "answer": str(2 * a)} for a in range(6)]
LENGTH = {"type": "length", "unit": "characters", "target": 1, "limit": 900}
NUMBERS = {"type": "math_answer", "reference": "{{item.answer}}"}


def make(make_run: MakeRun, grader: dict[str, Any], grpo: dict[str, Any], **recipe: Any) -> Path:
    given = BASE | {"grpo": GRPO | grpo, "max_steps": 1} | recipe
    return make_run(ROWS, recipe=given, method="reinforcement", grader=grader)


def test_a_grader_may_be_called_as_a_metric_is(make_run: MakeRun) -> None:
    graders = {"std": LENGTH, "reward": NUMBERS}
    grader = {"type": "multi", "graders": graders, "calculate_output": "std + reward"}
    run = make(make_run, grader, {})
    assert main(run) == 0, read_result(run).error
    (told,) = (one for one in event_data(run, EventKind.METRICS) if "reward" in one)
    lines = (run / "samples" / "step-000001.jsonl").read_text().splitlines()
    drawn = [json.loads(line) for line in lines]
    rewards = [one["reward"] for one in drawn]
    assert told["reward"] == pytest.approx(fmean(rewards), rel=1e-4)
    assert min(pstdev(rewards), stdev(rewards)) > 0
    assert told["reward_std"] == pytest.approx(stdev(rewards), rel=1e-3)
    for name in graders:
        mean = fmean(one["scores"][name] for one in drawn)
        assert told[f"score_{name}"] == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize(
    ("level", "loss", "doubtful"),
    [
        ("token", "dapo", False),
        ("token", "vespo", False),
        ("sequence", "grpo", False),
        ("sequence", "luspo", False),
        ("sequence", "dapo", True),
        ("sequence", "cispo", True),
        ("sequence", "vespo", True),
        ("token", "luspo", True),
    ],
)
def test_settings_that_hardly_go_together(level: Any, loss: Any, doubtful: bool) -> None:
    grpo = GRPORecipe(importance_sampling_level=level, loss_type=loss)
    assert len([*grpo.warnings()]) == doubtful


def test_such_settings_are_warned_of(make_run: MakeRun) -> None:
    run = make(make_run, LENGTH, {"importance_sampling_level": "sequence"})
    assert main(run) == 0, read_result(run).error
    said = [one.message for one in read_events(run) if one.level == "warn"]
    assert any("equal weights (GSPO), set recipe.grpo.loss_type='grpo'" in one for one in said), (
        said
    )


@pytest.mark.parametrize(
    ("recipe", "hint"),
    [
        ({}, "a model with a longer context"),
        ({"max_seq_length": 64}, "raise recipe.max_seq_length"),
    ],
)
def test_a_hint_for_long_prompts_leads_somewhere(
    make_run: MakeRun, recipe: dict[str, Any], hint: str
) -> None:
    run = make_run(
        [{"prompt": "word " * 3000, "answer": "1"}],
        recipe=BASE | {"grpo": GRPO} | recipe,
        method="reinforcement",
        grader=NUMBERS,
    )
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    assert error.code == "row_too_long"
    assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("grpo", "recipe"),
    [
        ({}, {"max_steps": 2}),
        ({"num_iterations": 2}, {"max_steps": 4}),
        ({}, {"max_steps": 4, "logging_steps": 10}),
        ({}, {"max_steps": 8, "early_stopping": {"patience": 1}, "eval_steps": 1}),
    ],
)
def test_a_run_that_can_learn_nothing_says_so_at_its_end(
    make_run: MakeRun, grpo: dict[str, Any], recipe: dict[str, Any]
) -> None:
    given = BASE | {"grpo": GRPO | grpo, "self_check": True} | recipe
    grader = {"type": "regex", "pattern": "never, ever"}
    valid = ROWS[:2] if "early_stopping" in recipe else None
    run = make_run(ROWS, valid=valid, recipe=given, method="reinforcement", grader=grader)
    assert main(run) == 0, read_result(run).error
    (said,) = (one.message for one in read_events(run) if "equal_rewards" in one.message)
    assert "in every group of the run, all rewards were equal" in said


def test_a_run_with_a_spread_somewhere_does_not(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that was before a pause."""
    monkeypatch.setattr(RolloutRunner, "grade", grade_first_step_alone(RolloutRunner.grade))
    run = make(make_run, LENGTH, {}, max_steps=4, self_check=True)
    assert interrupt(run, monkeypatch, stop=2) == 75
    assert main(run) == 0, read_result(run).error
    assert not any("equal_rewards" in one.message for one in read_events(run))


def grade_first_step_alone(grade: Any) -> Any:
    def graded(self: RolloutRunner, drawn: Any) -> Any:
        found = grade(self, drawn)
        if drawn.step == 0:
            return found
        drawn.graded = [replace(one, rewards=(1.0,)) for one in drawn.graded]
        return [[1.0] for _ in found]

    return graded


def test_a_run_that_nothing_scores_does_not_begin(
    make_run: MakeRun, capfd: pytest.CaptureFixture[str]
) -> None:
    run = make_run(ROWS, recipe=BASE | {"grpo": GRPO}, method="reinforcement")
    assert main(run) == 2
    said = capfd.readouterr().err
    assert "error: spec.json has no grader, so nothing scores the completions" in said
    assert "--reward FILE.py:NAME" in said
