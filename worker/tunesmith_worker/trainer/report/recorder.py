"""Recorder of the run report: measures times with its clock, and writes report.json.

The recorder rewrites report.json every few seconds during training and at the end, so that a killed
trainer leaves a recent report. Torch is imported only when training begins.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING, Any, Literal

from tunesmith_schema import Choice, RunReport, TrainingSettings
from tunesmith_worker.rundir.advice.judge import complete_report, empty_report
from tunesmith_worker.rundir.clock import WallClock
from tunesmith_worker.rundir.paths import RunDirectory
from tunesmith_worker.rundir.plan import DataPlan, LoadPlan, TrainPlan
from tunesmith_worker.rundir.progress import ProgressMark
from tunesmith_worker.trainer.checkpoints.identity import made_with

if TYPE_CHECKING:
    from tunesmith_worker.engine.memory.recompute import LayerCounters
    from tunesmith_worker.trainer.auto.layouts import Layouts

    from .rollouts import RoundFigures
    from .watch import TrainingWatch

WRITE_SECONDS = 5.0
"""Seconds between two writes while training."""


class RunRecorder:
    def __init__(self, run: RunDirectory) -> None:
        self.clock = WallClock()
        self.clock.mark = ProgressMark(run.progress).mark
        self._path = run.report
        self._started_at = time.time()
        self._watch: TrainingWatch | None = None
        self._host, self._versions = socket.gethostname(), made_with()
        self._written = -WRITE_SECONDS  # so that the first step writes the report immediately
        self.attempt = 1
        self.first_step: str | None = None
        """Result of comparing the attempt's first step with plain torch. The text also names the
        values that were not compared."""
        self.no_evaluation: str | None = None
        """Reason why the result could not be evaluated."""

    def watch(
        self,
        trainer: Any,  # Any: TRL is untyped
        settings: TrainingSettings,
        layouts: Layouts,
        *,
        device: str,
        choices: list[Choice],
        layers: LayerCounters | None = None,
    ) -> None:
        """Begin to time `trainer`; call this method just before training."""
        from tunesmith_worker.engine.memory.recompute import LayerCounters

        from .watch import TrainingWatch

        self._watch = TrainingWatch(
            trainer,
            settings,
            layouts,
            self.clock,
            device=device,
            choices=choices,
            layers=layers or LayerCounters(),
        )

    def rollout(self, figures: RoundFigures) -> None:
        """Add the measurements of a round of generation. Call this method before training on the
        completions."""
        assert self._watch is not None, "call watch first"
        self._watch.rollouts.add(figures)

    def live(self) -> dict[str, float | None]:
        """Return additional step metrics, if any, and update report.json."""
        assert self._watch is not None, "call watch first"
        if self.clock.wall - self._written >= WRITE_SECONDS:
            self._written = self.clock.wall
            self.write()
        return self._watch.live()

    def end(self, outcome: Literal["succeeded", "failed", "stopped"]) -> None:
        self.training_ended()
        self.write(outcome)

    def leave(self) -> None:
        """Write the report from a signal handler, without waiting for the GPU."""
        self.write("stopped")

    def training_ended(self) -> None:
        """End the GPU timeline. If the GPU fails, drop the GPU times that are still pending."""
        with contextlib.suppress(RuntimeError):
            self.clock.unfollow()

    def write(self, outcome: Literal["succeeded", "failed", "stopped"] | None = None) -> None:
        """Write report.json with all measurements so far."""
        content = self.report(outcome).model_dump_json(indent=1)
        part = self._path.with_name(f".{self._path.name}.part")
        # A missing report must not end the run. Checkpoints report a full disk.
        with contextlib.suppress(OSError):
            part.write_text(content, encoding="utf-8")
            part.replace(self._path)

    def report(self, outcome: Literal["succeeded", "failed", "stopped"] | None) -> RunReport:
        report = empty_report(self.attempt, self._started_at)
        report.outcome, report.phases = outcome, self.clock.read()
        report.wall_seconds = sum(report.phases.values())
        report.host, report.versions = self._host, self._versions
        report.first_step, report.no_evaluation = self.first_step, self.no_evaluation
        if self._watch is not None:
            self._watch.fill_in(report)
        return complete_report(report)


def training_settings(
    load: LoadPlan, data: DataPlan, train: TrainPlan, *, full: bool, recomputes: bool
) -> TrainingSettings:
    """Return the run's settings that the report lists, such as precision and batch size.
    `recomputes`: True if some layers recompute activations."""
    return TrainingSettings(
        tuning="full" if full else "lora",
        precision=load.precision,
        per_device_train_batch_size=train.per_device_train_batch_size,
        gradient_accumulation_steps=train.gradient_accumulation_steps,
        packing=data.packing,
        gradient_checkpointing=recomputes,
        logging_steps=train.logging_steps,
        eval_steps=train.eval_steps,
        save_steps=train.save_steps,
    )
