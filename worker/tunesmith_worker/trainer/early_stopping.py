"""Early stopping (`recipe.early_stopping`) and selection of the best weights (`recipe.keep`).

A summary of the evaluations so far is saved as JSON in transformers' TrainerState.
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
from tunesmith_worker.engine.model.adapters import SavedAdapter, SavedWeights
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.trainer.checkpoints.best_weights import BestWeights, Save

Untyped = Any  # Any: transformers is not typed


@dataclass(kw_only=True)
class Course:
    """Summary of the evaluations so far. Steps are optimizer steps; step 0 means that no evaluation
    has run."""

    metric: str
    best: float | None = None
    best_step: int = 0
    gained: float | None = None
    """Metric at the last gain; a gain is an improvement by more than `min_delta`."""
    gained_step: int = 0
    without_gain: int = 0
    """Number of evaluations since the last gain."""

    def take(self, step: int, value: float | None, min_delta: float) -> bool:
        """Add an evaluation; return True if this evaluation is the best so far.

        If two values are equal, the earlier value stays best. None and NaN never count as best."""
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
        """`evaluated`: function that returns the metrics of the last evaluation, with None for
        NaN."""
        recipe = spec.recipe
        self._rule = recipe.early_stopping
        self._grader = spec.grader and spec.grader.model_dump(mode="json")
        self._events, self._evaluated = events, evaluated
        self._kept = best if recipe.keep == "best" else None
        self._saved: SavedWeights | None = None
        self.course = Course(metric=selection_metric(self._rule, spec.method))
        self.fired = False
        """True if early stopping ended the training."""

    def state(self) -> dict[str, Any]:  # Any: JSON
        """Return the state that transformers keeps in `TrainerState.stateful_callbacks`."""
        return {"args": {}, "attributes": {"progress": self.progress}}

    @property
    def progress(self) -> dict[str, Any]:  # Any: JSON
        """State that a resumed run needs in addition to the kept weights."""
        return {
            "course": asdict(self.course),
            "kept": self._kept is not None,
            "saved": self._saved and self._saved.adapter and asdict(self._saved.adapter),
            "probe_sha256": self._saved and self._saved.probe_sha256,
            "grader": self._grader,
        }

    @progress.setter
    def progress(self, stored: dict[str, Any]) -> None:  # Any: JSON
        """Restore the state. A fork (a new job from another job's resume point) with another metric
        or grader ignores `stored`.

        A fork that changes `keep` to 'best' ignores the best evaluation of the original run. Raises
        RunError if the best weights so far are missing."""
        course = Course(**stored["course"])
        if course.metric != self.course.metric or stored.get("grader") != self._grader:
            return
        if self._kept is not None and course.best is not None:
            if not stored["kept"]:
                course.best, course.best_step = None, 0
            elif not (folder := self._kept.folder(course.best_step)).is_dir():
                raise RunError(
                    ErrorCode.TRAINER_CRASHED,
                    f"The best weights so far, of step {course.best_step}, are missing: {folder}.",
                    category=ErrorCategory.INFRASTRUCTURE,
                    hint="Start the run from step 0: the resume point is incomplete.",
                )
        self.course = course
        self._saved = SavedWeights(
            adapter=SavedAdapter(**stored["saved"]) if stored["saved"] else None,
            probe_sha256=stored.get("probe_sha256"),
        )

    def on_evaluate(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        step, value = state.global_step, self._evaluated().get(self.course.metric)
        best = self.course.take(step, value, self._rule.min_delta if self._rule else 0.0)
        if best and self._kept is not None:
            self._saved = self._kept.keep(step)
        exhausted = self._rule is not None and self.course.without_gain >= self._rule.patience
        if exhausted and step < state.max_steps:
            self.fired = control.should_training_stop = True
            # The run ends here; a run resumed from this step would train one step too many.
            control.should_save = False
            self._log_stop(step, state.max_steps)

    def result(self, folder: Path, last_step: int, save: Save) -> tuple[int, SavedWeights]:
        """Write the best or the last weights to `folder`. `save`: function that writes the last
        weights.

        Return the step of the written weights, and their description."""
        if self._kept is None:
            return last_step, save(folder)
        if self.course.best is None:
            self._events.message(
                f"recipe.keep is 'best', but {self.course.metric} was never finite: kept the "
                f"weights of the last step, {last_step}",
                level="warn",
            )
            return last_step, save(folder)
        self._kept.move_to(self.course.best_step, folder)
        self._log_kept(last_step)
        assert self._saved is not None  # set together with the best step
        return self.course.best_step, self._saved

    def _log_stop(self, step: int, total: int) -> None:
        course, rule = self.course, self._rule
        assert rule is not None
        since = (
            f"since step {course.gained_step} ({course.gained:.4f})"
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

    def _log_kept(self, last_step: int) -> None:
        course, last = self.course, self._evaluated().get(self.course.metric)
        last_text = (
            f"the last step, {last_step}, has {'no value' if last is None else f'{last:.4f}'}"
        )
        if course.best_step == last_step:
            last_text = f"step {last_step} is also the last step"
        self._events.message(
            f"kept the weights of step {course.best_step}, whose {course.metric}={course.best:.4f} "
            f"is the best; {last_text}",
            data={
                "metric": course.metric,
                "step": course.best_step,
                "value": course.best,
                "last_step": last_step,
                "last_value": last,
            },
        )
