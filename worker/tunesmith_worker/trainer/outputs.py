"""Writing of a run's weights, and setup of the callbacks that run between steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from tunesmith_schema import EventKind, PhaseName, RunSpec
from tunesmith_schema.retention import selection_loss
from tunesmith_worker.engine.model.adapters import SavedWeights, adapter_dtype, save_trained
from tunesmith_worker.engine.optimizers.choose import rounded_weights
from tunesmith_worker.engine.optimizers.lost_updates import LostUpdatesCallback
from tunesmith_worker.rundir.control import StopControl
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import RunDirectory
from tunesmith_worker.rundir.plan_file import PlanFile
from tunesmith_worker.trainer.checkpoints.best_weights import BestWeights
from tunesmith_worker.trainer.checkpoints.light_checkpoints import LightCheckpoints
from tunesmith_worker.trainer.checkpoints.saver import ResumePoints
from tunesmith_worker.trainer.report.recorder import RunRecorder

from .callbacks import RunCallback
from .early_stopping import EarlyStopping
from .selfcheck import Tripwires
from .time_limit import TimeLimit

Untyped = Any  # Any: transformers and TRL are not typed


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """The callbacks whose results `run.py` reads after training."""

    run: RunCallback
    stopping: EarlyStopping
    resume_points: ResumePoints
    light_checkpoints: LightCheckpoints


class OutputWriter:
    """Writes the weights of one run. Call `add_callbacks` before training."""

    def __init__(
        self,
        run: RunDirectory,
        spec: RunSpec,
        events: EventLog,
        recorder: RunRecorder,
        model: Untyped,
        tokenizer: Untyped,
        *,
        probe_ids: Sequence[int],
        with_tokenizer: bool,
    ) -> None:
        """`probe_ids`, `with_tokenizer`: see `save_trained`."""
        self._run, self._spec, self._events, self._recorder = run, spec, events, recorder
        self._model, self._tokenizer = model, tokenizer
        self._probe_ids, self._with_tokenizer = probe_ids, with_tokenizer
        self._pad_token_id = getattr(model.config, "pad_token_id", None)

    def weights(self, folder: Path) -> SavedWeights:
        """Save the current weights in the format of stock PEFT and transformers."""
        with rounded_weights(self._trainer.optimizer), self._original_padding():
            return save_trained(
                folder,
                self._model,
                self._tokenizer,
                base_name=self._spec.model,
                probe_ids=self._probe_ids,
                dtype=adapter_dtype(self._spec.recipe),
                with_tokenizer=self._with_tokenizer,
            )

    @contextmanager
    def _original_padding(self) -> Iterator[None]:
        """Within this block, the configuration has the padding token of the base model.

        During training, the configuration has the tokenizer's padding token, which transformers'
        Trainer sets. RoBERTa and other models derive positions from the padding token, so another
        token would change the logits of the saved model."""
        config = self._model.config
        aligned = getattr(config, "pad_token_id", None)
        if aligned == self._pad_token_id:
            yield
            return
        config.pad_token_id = self._pad_token_id
        try:
            yield
        finally:
            config.pad_token_id = aligned

    def best(self, folder: Path) -> SavedWeights:
        with self._recorder.clock.during(PhaseName.CHECKPOINTING):
            return self.weights(folder)

    def due(self, step: int) -> None:
        """After a step, save a checkpoint if one is due, and a resume point if one is due."""
        if self._callbacks.run.checkpoint_due(step):
            self._checkpoint(step)
        self._callbacks.resume_points.save(self._trainer)

    def _checkpoint(self, step: int) -> None:
        folder, callback = self._run.checkpoint(step), self._callbacks.run
        self.weights(folder)
        self._events.append(
            EventKind.CHECKPOINT,
            f"Step {step}: checkpoint saved",
            {
                "step": step,
                "directory": self._run.relative(folder),
                "metrics": dict(callback.checkpoint_metrics()),
            },
        )
        self._light.add(step, selection_loss(callback.metrics))

    def add_callbacks(
        self,
        trainer: Untyped,
        control: StopControl,
        plan: PlanFile,
        *,
        save_steps: int | None,
        lost_updates: bool,
    ) -> Callbacks:
        """Add the callbacks in the order in which they run.

        `lost_updates`: True to report weight updates that bf16 rounding loses."""
        run, spec, events = self._run, self._spec, self._events
        if lost_updates:
            trainer.add_callback(LostUpdatesCallback(events))
        callback = RunCallback(
            events,
            control,
            save_steps=save_steps,
            trained_tokens=lambda: trainer.trained_tokens,
            input_tokens=lambda: trainer.input_tokens,
            live=self._recorder.live,
            mark=self._recorder.clock.mark,
        )
        best = BestWeights(run.checkpoints, self.best)
        stopping = EarlyStopping(spec, best, events, lambda: callback.metrics)
        limit = TimeLimit(spec.recipe.max_seconds, forked=spec.forked)
        control.time_limit = limit.reached
        trainer.add_callback(limit)
        trainer.add_callback(stopping)  # before RunCallback, which excludes saving time from rates
        trainer.add_callback(callback)
        if spec.recipe.self_check:
            trainer.add_callback(Tripwires(trainer, events))
        resume_points = ResumePoints(run, spec, events, plan, control)
        self._light = LightCheckpoints(run, spec.recipe, forked=spec.forked)
        trainer.add_callback(self._light)
        trainer.add_callback(resume_points)
        trainer.remove_callback(transformers.PrinterCallback)
        self._trainer = trainer
        self._callbacks = Callbacks(
            run=callback,
            stopping=stopping,
            resume_points=resume_points,
            light_checkpoints=self._light,
        )
        return self._callbacks
