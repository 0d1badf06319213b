"""Completions that have no reward: counted, told of, and no success where there are no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import MakeRun
from tests.worker.runs import event_data, read_events, read_result
from tests.worker.trainer.checkpoints.interrupted import interrupt
from tunesmith_schema import EventKind
from tunesmith_worker.trainer.run import main

from .test_exactness import BASE, GRPO

NUMBERS = {"type": "math_answer", "reference": "{{item.answer}}"}
BROKEN = [{"prompt": f"How much is {a} plus {a}?", "answer": "several"} for a in range(6)]


def make(make_run: MakeRun, rows: list[dict[str, str]], **recipe: Any) -> Path:
    given = BASE | {"grpo": GRPO} | recipe
    return make_run(rows, recipe=given, method="reinforcement", grader=NUMBERS)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (2, "No completion of 2 consecutive steps could"),
        (5, "No completion of 3 consecutive steps could"),
    ],
)
def test_a_run_without_any_reward_fails(make_run: MakeRun, steps: int, said: str) -> None:
    """However short it is."""
    run = make(make_run, BROKEN, max_steps=steps)
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    assert (error.code, error.category) == ("grader_failed", "grader")
    assert said in error.message
    assert "the reference has no number: 'several'" in error.message
    (warning,) = (one for one in read_events(run) if "could not be scored" in one.message)
    assert "Step 1: 6 of 6 completions could not be scored" in warning.message
    values = [one for one in event_data(run, EventKind.METRICS) if "ungraded_share" in one]
    assert {one["ungraded_share"] for one in values} == {1.0}
    assert {one["frac_reward_zero_std"] for one in values} == {0.0}, "they are not equal"
    found = json.loads((run / "report.json").read_text())
    assert (found["rollouts"]["ungraded_share"], found["rollouts"]["zero_std_share"]) == (1.0, None)
    assert found["advice"]["rule"] == "ungraded"


def test_a_run_that_is_asked_to_stop_has_not_failed(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been stopped for that, and another attempt may fix it."""
    run = make(make_run, BROKEN, max_steps=4)
    assert interrupt(run, monkeypatch, stop=1) != 1


def test_steps_without_a_reward_are_counted_across_a_pause(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(make_run, BROKEN, max_steps=9)
    assert interrupt(run, monkeypatch, stop=2) == 75
    assert main(run) == 1
    steps = {one["step"] for one in event_data(run, EventKind.METRICS) if "ungraded_share" in one}
    assert steps == {1, 2}, "the third ended it"


def test_some_without_a_reward_are_a_share(make_run: MakeRun) -> None:
    good = [{"prompt": f"How much is {a} plus {a}?", "answer": str(2 * a)} for a in range(3)]
    run = make(make_run, [*good, *BROKEN[:3]], max_steps=3)
    assert main(run) == 0, read_result(run).error
    values = event_data(run, EventKind.METRICS)
    shares = [one["ungraded_share"] for one in values if "ungraded_share" in one]
    assert sum(shares) == pytest.approx(3 / 2)  # three of six rows, in three steps of two
    report = json.loads((run / "report.json").read_text())["rollouts"]
    assert report["ungraded_share"] == pytest.approx(1 / 2)
    assert report["zero_std_share"] == 1.0, "of the groups with rewards"
    told = [one["frac_reward_zero_std"] for one in values if "frac_reward_zero_std" in one]
    assert set(told) <= {0.0, 1.0}, "none, where there is no such group"
    assert 1.0 in told
