"""Which evaluation was the best, and when there is nothing more to gain.

Ends the training by `recipe.early_stopping` and gives the weights that `recipe.keep` asks for. Its
state travels in transformers' TrainerState, as JSON. Does not know how weights are written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import transformers
from transformers.trainer_callback import ExportableState

from tunesmith_schema import ErrorCategory, ErrorCode, RunSpec
from tunesmith_schema.early_stopping import HIGHER_IS_BETTER, selection_metric
from tunesmith_worker.engine.model.adapters import SavedAdapter
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.trainer.checkpoints.best_weights import BestWeights, Save

Untyped = Any  # Any: transformers is not typed


@dataclass(kw_only=True)
class Course:
    """What the evaluations so far come to. Steps are optimiser steps; 0 stands for none."""

    metric: str
    best: float | None = None
    best_step: int = 0
    gained: float | None = None
    """The last evaluation that was a gain."""
    gained_step: int = 0
    without_gain: int = 0
    """Evaluations in a row since then."""

    def take(self, step: int, value: float | None, min_delta: float) -> bool:
        """Whether this evaluation is the best so far. Of equals the earlier is; None and NaN are
        neither best nor a gain."""
        if value is None or not math.isfinite(value):
            self.without_gain += 1
            return False
        if self.gained is None or self._better(value, self.gained) > min_delta:
            self.gained, self.gained_step, self.without_gain = value, step, 0
        else:
            self.without_gain += 1
        if self.best is not None and self._better(value, self.best) <= 0:
            return False
        self.best, self.best_step = value, step
        return True

    def _better(self, value: float, than: float) -> float:
        return value - than if self.metric in HIGHER_IS_BETTER else than - value


class EarlyStopping(transformers.TrainerCallback, ExportableState):  # type: ignore[misc]  # untyped
    def __init__(
        self,
        spec: RunSpec,
        best: BestWeights,
        events: EventLog,
        evaluated: Callable[[], Mapping[str, float | None]],
    ) -> None:
        """`evaluated` gives the metrics of the evaluation that has just ended, None for NaN."""
        recipe = spec.recipe
        self._rule = recipe.early_stopping
        self._grader = spec.grader and spec.grader.model_dump(mode="json")
        self._events, self._evaluated = events, evaluated
        self._kept = best if recipe.keep == "best" else None
        self._saved: SavedAdapter | None = None
        self.course = Course(metric=selection_metric(self._rule, spec.method))
        self.fired = False
        """The training has ended because there was no gain."""

    def state(self) -> dict[str, Any]:  # Any: JSON
        """As transformers stores it, in `TrainerState.stateful_callbacks`, and sets it again."""
        return {"args": {}, "attributes": {"progress": self.progress}}

    @property
    def progress(self) -> dict[str, Any]:  # Any: JSON
        """What a run that is taken up again needs to know, beside the files that are kept."""
        return {
            "course": asdict(self.course),
            "kept": self._kept is not None,
            "saved": self._saved and asdict(self._saved),
            "grader": self._grader,
        }

    @progress.setter
    def progress(self, stored: dict[str, Any]) -> None:  # Any: JSON
        """A fork may judge by another metric or grader, or keep what its origin did not: it begins
        anew.
        Raises RunError when the best weights so far are not where they were kept."""
        course = Course(**stored["course"])
        if course.metric != self.course.metric or stored.get("grader") != self._grader:
            return
        if self._kept is not None and course.best is not None:
            if not stored["kept"]:
                course.best, course.best_step = None, 0
            elif not (folder := self._kept.folder(course.best_step)).is_dir():
                raise RunError(
                    ErrorCode.TRAINER_CRASHED,
                    f"The best weights so far, those of step {course.best_step}, are not in "
                    f"{folder}.",
                    category=ErrorCategory.INFRASTRUCTURE,
                    hint="Start the run from its beginning: this resume point is not whole.",
                )
        self.course = course
        self._saved = SavedAdapter(**stored["saved"]) if stored["saved"] else None

    def on_evaluate(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        step, value = state.global_step, self._evaluated().get(self.course.metric)
        best = self.course.take(step, value, self._rule.min_delta if self._rule else 0.0)
        if best and self._kept is not None:
            self._saved = self._kept.keep(step)
        exhausted = self._rule is not None and self.course.without_gain >= self._rule.patience
        if exhausted and step < state.max_steps:
            self.fired = control.should_training_stop = True
            # The result follows at once; and a run taken up here would do one step too many.
            control.should_save = False
            self._tell_end(step, state.max_steps)

    def result(self, folder: Path, last_step: int, save: Save) -> tuple[int, SavedAdapter | None]:
        """Put the weights to be kept into `folder`, by `save` if they are the model's own; gives
        their step, and what saving them was."""
        if self._kept is None:
            return last_step, save(folder)
        if self.course.best is None:
            self._events.message(
                f"recipe.keep is 'best', but {self.course.metric} was never a number: the weights "
                f"of step {last_step}, the last, are kept",
                level="warn",
            )
            return last_step, save(folder)
        self._kept.move_to(self.course.best_step, folder)
        self._tell_kept(last_step)
        return self.course.best_step, self._saved

    def _tell_end(self, step: int, total: int) -> None:
        course, rule = self.course, self._rule
        assert rule is not None
        since = (
            f"since step {course.gained_step}, which had {course.gained:.4f}"
            if course.gained is not None
            else "at all"
        )
        more = f" of more than {rule.min_delta:g}" if rule.min_delta else ""
        times = f"{course.without_gain} evaluations" if course.without_gain > 1 else "1 evaluation"
        self._events.message(
            f"Step {step}/{total}: stopped early: {times} without a gain{more} in {course.metric} "
            f"{since}",
            data={"step": step, "total_steps": total, **asdict(course)},
        )

    def _tell_kept(self, last_step: int) -> None:
        course, last = self.course, self._evaluated().get(self.course.metric)
        other = f"step {last_step}, the last, has {'no number' if last is None else f'{last:.4f}'}"
        if course.best_step == last_step:
            other = "it is the last as well"
        self._events.message(
            f"kept the weights of step {course.best_step}, whose {course.metric}={course.best:.4f} "
            f"is the best; {other}",
            data={
                "metric": course.metric,
                "step": course.best_step,
                "value": course.best,
                "last_step": last_step,
                "last_value": last,
            },
        )
