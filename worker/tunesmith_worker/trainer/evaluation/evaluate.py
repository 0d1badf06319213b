"""Evaluate a run's result, and store the evaluation as evaluation.json.

A failed evaluation gives only a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from tunesmith_schema import Evaluation, PhaseName
from tunesmith_worker.rundir.control import StopControl
from tunesmith_worker.rundir.errors import error_text
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import RunDirectory, write_json
from tunesmith_worker.trainer.report.recorder import RunRecorder

from .budget import Budget
from .models import EvaluatedModel, LeftOut

MOST_TEXT = 1000
"""Maximum length of an error's text in the run report."""


class Evaluator(Protocol):
    """Evaluation of a supervised or a reinforcement run, created before training."""

    def evaluate(self, models: Sequence[EvaluatedModel], budget: Budget) -> Evaluation: ...


def evaluate_result(
    run: RunDirectory,
    events: EventLog,
    control: StopControl,
    recorder: RunRecorder,
    evaluator: Evaluator,
    models: Callable[[], Sequence[EvaluatedModel]],
) -> None:
    """Evaluate the models after the result is saved. Never raises an exception: if the evaluation
    fails, the result stays valid, and an event and the run report tell why the evaluation
    failed."""
    clock = recorder.clock
    budget = Budget(clock.wall, stop_requested=lambda: control.stop_requested, mark=clock.mark)
    try:
        with events.phase(PhaseName.EVALUATE_RESULT):
            evaluation = evaluator.evaluate(models(), budget)
            evaluation.seconds = round(budget.spent, 3)
            evaluation.job_share = round(budget.spent / max(budget.job_seconds, 1e-9), 4)
            write_json(run.evaluation, evaluation)
        events.message(
            f"evaluation: {evaluation.verdict}",
            data=evaluation.summary().model_dump(mode="json") | {"left_out": evaluation.left_out},
        )
    except Exception as error:  # any model, grader or disk may fail here
        kind = "" if isinstance(error, LeftOut) else f"{type(error).__name__}: "
        recorder.no_evaluation = f"{kind}{error_text(error)}"[:MOST_TEXT]
        with suppress(OSError):
            events.message(
                f"The result is saved, but it could not be evaluated: {recorder.no_evaluation}",
                level="warn",
            )
