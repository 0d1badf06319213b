"""When a training ends before its last step, and which weights it keeps."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, read_events, read_result
from tunesmith_schema import EventKind, RunSpec
from tunesmith_worker.engine.model.adapters import SavedWeights
from tunesmith_worker.rundir.control import StopControl
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import RunDirectory, new_folder
from tunesmith_worker.trainer.checkpoints.best_weights import (
    BestWeights,
    restore_best_weights,
    stage_best_weights,
)
from tunesmith_worker.trainer.early_stopping import Course, EarlyStopping
from tunesmith_worker.trainer.run import main

NAN, INF = math.nan, math.inf
OTHERWISE = [{**row, "answer": f"{row['question']} No {n}."} for n, row in enumerate(QUESTIONS[:6])]
"""Rows that a model which learns QUESTIONS gets wrong."""


@pytest.mark.parametrize(
    ("values", "patience", "min_delta", "ends_at", "best"),
    [
        ([3, 2, 1, 0.5], 1, 0, None, 4),
        ([3, 2, 2, 1], 1, 0, 3, 2),  # an equal is no gain, and not the best
        ([3, 2, 2, 1], 2, 0, None, 4),
        ([3, 4, 5, 2], 2, 0, 3, 1),
        ([3, 4, 2, 4, 5, 1], 2, 0, 5, 3),  # a gain starts the count again
        ([3, 2.75, 2.5, 2.25], 2, 0.4, None, 4),  # two small steps are more than min_delta
        ([3, 2.75, 2.5, 2.25], 2, 1, 3, 3),  # the best may be no gain
        ([3, 2.5, 2.5], 1, 0.5, 2, 2),  # by min_delta itself is not by more
        ([NAN, 3, NAN, NAN], 2, 0, 4, 2),
        ([3, INF, None, 2], 2, 0, 3, 1),
        ([3, -INF], 1, 0, 2, 1),
        ([NAN, NAN], 2, 0, 2, 0),
    ],
)
@pytest.mark.parametrize("metric", ["valid_loss", "valid_mean_token_accuracy"])
def test_patience_counts_evaluations_without_a_gain(
    metric: str,
    values: list[float | None],
    patience: int,
    min_delta: float,
    ends_at: int | None,
    best: int,
) -> None:
    sign = 1 if metric == "valid_loss" else -1
    course, ended, kept = Course(metric=metric), None, 0
    for step, value in enumerate(values, start=1):
        if course.take(step, value if value is None else sign * value, min_delta):
            kept = step
        if course.without_gain >= patience:
            ended = step
            break
    assert (ended, kept) == (ends_at, best)
    assert course.best_step == best


PLATEAU = {
    "max_steps": 40,
    "eval_steps": 2,
    "save_steps": 2,
    "learning_rate": 1e-12,
    "early_stopping": {"patience": 3, "min_delta": 1e-3},
}


def test_a_plateau_ends_the_training_and_leaves_the_schedule_as_it_was(make_run: MakeRun) -> None:
    run = make_run(QUESTIONS, valid=OTHERWISE, recipe=PLATEAU)
    assert main(run) == 0
    result = read_result(run)
    assert (result.outcome, result.step) == ("succeeded", 8)  # the first, and three without a gain
    metrics = event_data(run, EventKind.METRICS)
    assert [point["step"] for point in metrics if "valid_loss" in point] == [2, 4, 6, 8]
    rates = [point["learning_rate"] for point in metrics if "learning_rate" in point]
    assert len(rates) == 8
    assert rates[-1] > 0.8e-12, "linear to zero over 40 steps, not over 8"
    (told,) = [event for event in read_events(run) if "stopped early" in event.message]
    assert "3 evaluations without a gain of more than 0.001 in valid_loss since step 2" in (
        told.message
    )
    # The adapter is that step's, so that nothing is saved twice, or taken up when all is done.
    steps = [point["step"] for point in event_data(run, EventKind.CHECKPOINT)]
    assert steps == [2, 4, 6]


@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_the_best_weights_are_those_of_their_step(make_run: MakeRun, tuning: str) -> None:
    rate = 0.1 if tuning == "lora" else 0.03
    recipe = {
        **{"max_steps": 8, "eval_steps": 1, "save_steps": 1, "per_device_train_batch_size": 8},
        **{"learning_rate": rate, "lr_scheduler_type": "constant"},
    }
    run = make_run(QUESTIONS, valid=OTHERWISE, recipe={**recipe, "tuning": tuning, "keep": "best"})
    assert main(run) == 0
    found = {
        point["step"]: point["valid_loss"]
        for point in event_data(run, EventKind.METRICS)
        if "valid_loss" in point
    }
    best = min(found, key=lambda step: (found[step], step))
    assert 1 < best < 8, f"neither the first nor the last is to be the best: {found}"
    assert read_result(run).step == best
    result, checkpoint = run / "adapter", run / "checkpoints" / f"step-{best}"
    names = sorted({path.name for path in result.iterdir()} - {"verification.json"})
    assert names == sorted(path.name for path in checkpoint.iterdir())
    for name in names:
        assert (result / name).read_bytes() == (checkpoint / name).read_bytes(), name
    weights = "adapter_model.safetensors" if tuning == "lora" else "model.safetensors"
    last = run / "checkpoints" / "step-8" / weights
    assert (result / weights).read_bytes() != last.read_bytes()
    (told,) = [event for event in read_events(run) if event.message.startswith("kept the weights")]
    assert told.data == {
        "metric": "valid_loss",
        "step": best,
        "value": found[best],
        "last_step": 8,
        "last_value": found[8],
    }
    assert not list((run / "checkpoints").glob("*best*"))
    assert any("adapter_bytes" in event.data for event in read_events(run)) == (tuning == "lora")


@pytest.fixture
def asked_at_step_3(monkeypatch: pytest.MonkeyPatch) -> list[signal.Signals]:
    """control.json asks to stop during step 3; signals in the list come right before it."""
    before, signals = StopControl.step_ended, list[signal.Signals]()

    def step_ended(self: StopControl, step: int) -> None:
        if step == 3:
            for one in signals:
                os.kill(os.getpid(), one)
            self._run.control.write_text('{"action": "stop"}')
        before(self, step)

    monkeypatch.setattr(StopControl, "step_ended", step_ended)
    return signals


SHORT = {"max_steps": 20, "eval_steps": 2, "save_steps": 3, "learning_rate": 0.05}


@pytest.mark.usefixtures("asked_at_step_3")
@pytest.mark.parametrize(("keep", "valid"), [("last", False), ("last", True), ("best", True)])
def test_asked_to_stop_it_ends_as_if_that_step_were_the_last(
    make_run: MakeRun, keep: str, valid: bool
) -> None:
    run = make_run(QUESTIONS, valid=OTHERWISE if valid else None, recipe={**SHORT, "keep": keep})
    assert main(run) == 0
    metrics = event_data(run, EventKind.METRICS)
    judged = {point["step"]: point["valid_loss"] for point in metrics if "valid_loss" in point}
    assert list(judged) == ([2, 3] if valid else [])
    best = min(judged, key=lambda step: judged[step]) if keep == "best" else 3
    result = read_result(run)
    assert (result.outcome, result.step, result.kind) == ("succeeded", best, "lora")
    assert result.trained_tokens == metrics[-1 - valid]["trained_tokens"]
    assert (run / "adapter" / "adapter_model.safetensors").exists()
    assert not event_data(run, EventKind.CHECKPOINT), "the result itself was to follow at once"
    assert any(
        event.message == "Step 3/20: stopped by request; the trained weights are kept"
        for event in read_events(run)
    )


def test_sigterm_goes_before_a_request_to_stop(
    make_run: MakeRun, asked_at_step_3: list[signal.Signals]
) -> None:
    asked_at_step_3.append(signal.SIGTERM)
    run = make_run(QUESTIONS, recipe=SHORT)
    assert main(run) == 75
    assert (read_result(run).outcome, read_result(run).step) == ("stopped", 3)
    assert [point["step"] for point in event_data(run, EventKind.CHECKPOINT)] == [3]
    assert not (run / "adapter").exists()


def test_asked_before_the_first_step_it_does_that_one(make_run: MakeRun) -> None:
    run = make_run(QUESTIONS, recipe=SHORT)
    (run / "control.json").write_text('{"action": "stop"}')
    assert main(run) == 0
    assert (read_result(run).outcome, read_result(run).step) == ("succeeded", 1)


RULE = {"early_stopping": {"patience": 2}, "keep": "best"}


def spec_of(recipe: dict[str, Any], **changes: Any) -> RunSpec:  # Any: JSON
    usual = {"job_id": "ftjob-1", "attempt": 1, "model": "m", "model_path": "m"}
    files = {"training_file": "t", "validation_file": "v"}
    return RunSpec.model_validate({**usual, **files, "recipe": recipe, **changes})


class Trainer:
    """What transformers' Trainer does with the callback: values come in as evaluations, and what
    is saved is the step."""

    def __init__(self, folder: Path, recipe: dict[str, Any], **spec: Any) -> None:  # Any: JSON
        folder.mkdir(exist_ok=True)
        self.run, self.events = RunDirectory(folder), EventLog(folder / "events.jsonl")
        self._values: dict[str, float | None] = {}
        self.control = transformers.TrainerControl()
        self.stopping = EarlyStopping(
            spec_of(recipe, **spec),
            BestWeights(self.run.checkpoints, self.save),
            self.events,
            lambda: self._values,
        )
        self.state = transformers.TrainerState(max_steps=99, stateful_callbacks=[self.stopping])

    def save(self, folder: Path) -> SavedWeights:
        with new_folder(folder) as part:
            (part / "weights").write_text(f"of step {self.state.global_step}")
        return SavedWeights(probe_sha256=f"probe of step {self.state.global_step}")

    def begin(self, point: Path | None = None) -> None:
        if point is not None:
            restore_best_weights(point, self.run.checkpoints)
            self.state = transformers.TrainerState.load_from_json(str(point / "state.json"))
            stored = self.state.stateful_callbacks["EarlyStopping"]
            for name, value in stored["attributes"].items():
                setattr(self.stopping, name, value)

    def evaluates(self, *values: float | None) -> None:
        for value in values:
            self.state.global_step += 1
            names = ("valid_loss", "valid_mean_token_accuracy", "valid_reward")
            self._values = dict.fromkeys(names, value)
            self.stopping.on_evaluate(None, self.state, self.control)

    def resume_point(self, point: Path) -> Path:
        stage_best_weights(self.run.checkpoints, self.state.global_step).rename(point)
        self.state.stateful_callbacks = {"EarlyStopping": self.stopping.state()}
        self.state.save_to_json(str(point / "state.json"))
        return point

    def result(self) -> tuple[int, str]:
        step, saved = self.stopping.result(self.run.adapter, self.state.global_step, self.save)
        assert saved.probe_sha256 == f"probe of step {step}"
        return step, (self.run.adapter / "weights").read_text()


def test_a_run_taken_up_again_ends_as_one_that_never_broke_off(tmp_path: Path) -> None:
    values = [5.0, 4.0, 4.5, 3.0, 3.5, 3.25, 9.0]
    whole = Trainer(tmp_path / "whole", RULE)
    whole.begin()
    for taken_up_at in (1, 2, 3, 5):
        first = Trainer(tmp_path / f"first-{taken_up_at}", RULE)
        first.begin()
        first.evaluates(*values[:taken_up_at])
        point = first.resume_point(tmp_path / f"point-{taken_up_at}")
        assert all(file.is_file() for file in point.iterdir()), "a resume point is flat"
        first.evaluates(0.5)  # a best of a past that was lost
        for place in (first.run.root, tmp_path / f"elsewhere-{taken_up_at}"):
            again = Trainer(place, RULE)
            again.begin(point)
            for value in values[taken_up_at:]:
                again.evaluates(value)
                if again.control.should_training_stop:
                    break
            assert (again.stopping.fired, again.state.global_step) == (True, 6)
            assert again.result() == (4, "of step 4")
            assert not list(again.run.checkpoints.iterdir())


def test_no_resume_point_is_made_where_it_ends(tmp_path: Path) -> None:
    """One that is taken up there would do a step more."""
    trainer = Trainer(tmp_path / "run", RULE)
    trainer.begin()
    trainer.evaluates(1.0, 2.0)
    trainer.control.should_save = True
    trainer.evaluates(2.0)
    assert trainer.control == replace(trainer.control, should_training_stop=True, should_save=False)


def test_a_best_that_is_not_there_is_not_passed_over(tmp_path: Path) -> None:
    first = Trainer(tmp_path / "first", RULE)
    first.evaluates(1.0)
    point = first.resume_point(tmp_path / "point")
    (point / "best-step-1.weights").unlink()
    again = Trainer(tmp_path / "again", RULE)
    with pytest.raises(RunError, match="of step 1, are missing"):
        again.begin(point)


@pytest.mark.parametrize(
    ("fork", "ended_at", "kept"),
    [
        ({**RULE, "early_stopping": {"patience": 3}}, 4, 1),
        ({**RULE, "early_stopping": {"metric": "valid_mean_token_accuracy", "patience": 2}}, 6, 4),
        ({"keep": "best"}, None, 1),
        ({"early_stopping": {"patience": 2}}, 3, 6),
    ],
)
def test_a_fork_goes_on_with_what_still_means_the_same(
    tmp_path: Path, fork: dict[str, Any], ended_at: int | None, kept: int
) -> None:
    origin = Trainer(tmp_path / "origin", RULE)
    origin.evaluates(1.0, 2.0)
    point = origin.resume_point(tmp_path / "point")
    trainer = Trainer(tmp_path / "fork", fork)
    trainer.begin(point)
    ends = None
    for value in (2.0, 3.0, 2.5, 2.0):
        trainer.evaluates(value)
        if trainer.stopping.fired and ends is None:
            ends = trainer.state.global_step
    assert (ends, trainer.result()[0]) == (ended_at, kept)


def test_rewards_are_better_when_they_are_higher_and_another_grader_begins_anew(
    tmp_path: Path,
) -> None:
    def graded(reference: str) -> dict[str, Any]:  # Any: JSON
        grader = {"type": "math_answer", "reference": reference}
        return {"method": "reinforcement", "grader": grader}

    origin = Trainer(tmp_path / "origin", RULE, **graded("{{item.answer}}"))
    origin.evaluates(0.2, 0.4, 0.3)
    assert (origin.stopping.course.metric, origin.stopping.course.best) == ("valid_reward", 0.4)
    point = origin.resume_point(tmp_path / "point")
    same = Trainer(tmp_path / "same", RULE, **graded("{{item.answer}}"))
    same.begin(point)
    assert same.stopping.course == origin.stopping.course
    other = Trainer(tmp_path / "other", RULE, **graded("{{item.solution}}"))
    other.begin(point)
    assert other.stopping.course.best is None


def test_a_fork_of_a_run_that_kept_no_best_keeps_its_own(tmp_path: Path) -> None:
    origin = Trainer(tmp_path / "origin", {"keep": "last"})
    origin.evaluates(1.0)
    trainer = Trainer(tmp_path / "fork", {"keep": "best"})
    trainer.begin(origin.resume_point(tmp_path / "point"))
    trainer.evaluates(3.0, 2.0, 4.0)
    assert trainer.result() == (3, "of step 3")


def test_where_no_evaluation_gave_a_number_the_last_weights_are_kept_and_it_is_said(
    tmp_path: Path,
) -> None:
    trainer = Trainer(tmp_path / "run", {"keep": "best"})
    trainer.begin()
    trainer.evaluates(None, None)
    assert trainer.result() == (2, "of step 2")
    (told,) = read_events(tmp_path / "run")
    assert told.level == "warn"
    assert "valid_loss was never finite: kept the weights of the last step, 2" in told.message


def test_copies_do_where_a_file_system_has_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", no_links)
    trainer = Trainer(tmp_path / "run", RULE)
    trainer.evaluates(1.0)
    point = trainer.resume_point(tmp_path / "point")
    shutil.rmtree(trainer.run.root)
    assert json.loads((point / "state.json").read_text())["global_step"] == 1
    again = Trainer(tmp_path / "again", RULE)
    again.begin(point)
    assert again.result() == (1, "of step 1")
