"""`recipe.max_seconds`: a run ends at its next step and keeps its result."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from pydantic import ValidationError

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, losses, read_events, read_result
from tunesmith_schema import Recipe, RunSpec
from tunesmith_worker.trainer.run import main
from tunesmith_worker.trainer.time_limit import TimeLimit

RECIPE = {"max_steps": 6, "per_device_train_batch_size": 4, "self_check": False}


def test_a_run_beyond_its_time_ends_at_the_next_step_and_succeeds(make_run: MakeRun) -> None:
    folder = make_run(QUESTIONS, valid=QUESTIONS[:2], recipe={**RECIPE, "max_seconds": 0.001})
    assert main(folder) == 0
    result = read_result(folder)
    assert (result.outcome, result.step, result.directory) == ("succeeded", 1, "adapter")
    assert (folder / "adapter" / "adapter_model.safetensors").is_file()
    assert "valid_loss" in result.metrics  # the weights that are kept were evaluated
    [event] = [event for event in read_events(folder) if "max_seconds" in event.data]
    assert event.message.startswith("Step 1/6: stopped after ")
    assert "recipe.max_seconds is 0.001" in event.message
    assert event.data["seconds"] > 0.001  # type: ignore[operator]  # JSON
    assert len(losses(folder)) == 1


def test_a_run_within_its_time_is_not_changed(make_run: MakeRun) -> None:
    folders = [
        make_run(QUESTIONS, recipe={**RECIPE, **limit}, name=name)
        for name, limit in (("free", {}), ("limited", {"max_seconds": 3600}))
    ]
    assert [main(folder) for folder in folders] == [0, 0]
    assert losses(folders[0]) == losses(folders[1])
    assert len(losses(folders[1])) == 6


@dataclass
class Clock:
    seconds: float

    def __call__(self) -> float:
        return self.seconds


def test_the_time_of_earlier_attempts_counts_and_that_of_a_forked_job_does_not() -> None:
    clock = Clock(100.0)
    first = TimeLimit(60, forked=False, now=clock)
    first.on_train_begin(None, None, None)
    clock.seconds = 150.0
    assert first.reached() is None
    saved = first.state()["attributes"]
    assert saved == {"earlier_seconds": 50.0}
    for forked, seconds in ((False, 62.0), (True, 12.0)):
        clock.seconds = 1000.0
        later = TimeLimit(60, forked=forked, now=clock)
        later.earlier_seconds = saved["earlier_seconds"]
        later.on_train_begin(None, None, None)
        clock.seconds = 1012.0
        assert later.seconds == seconds
        assert (later.reached() is None) == forked


def test_a_limit_changes_no_choice_of_the_plan() -> None:
    def spec(**recipe: float) -> RunSpec:
        return RunSpec(
            job_id="ftjob-1", attempt=1, model="m", model_path="/m", training_file="t.jsonl",
            recipe=Recipe.model_validate(recipe),
        )  # fmt: skip

    assert spec().sha256() == spec(max_seconds=60).sha256()
    assert spec().sha256() != spec(max_steps=60).sha256()


@pytest.mark.parametrize("value", [0, -1, 1e9, float("inf"), float("nan"), "auto"])
def test_a_limit_has_bounds(value: object) -> None:
    with pytest.raises(ValidationError, match="max_seconds"):
        Recipe.model_validate({"max_seconds": value})
