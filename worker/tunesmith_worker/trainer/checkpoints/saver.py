"""Saving of resume points: at the recipe's interval, when a run stops, and automatically. Automatic
saving takes about 1 % of the run's time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers

from tunesmith_schema import EventKind, RunSpec
from tunesmith_worker.engine.memory.free_memory import host_free
from tunesmith_worker.rundir.control import StopControl
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import RunDirectory
from tunesmith_worker.rundir.plan_file import PlanFile

from .identity import made_for, made_with
from .state import capture_state
from .write import ResumePointWriter, WrittenPoint

Untyped = Any  # Any: transformers and TRL are not typed

LEAST_SECONDS = 30.0
"""Minimum time between automatic resume points."""
COST_FACTOR = 100.0
"""Minimum time between two automatic resume points, as a multiple of the last save's duration. On a
CPU, the time is also measured in CPU-seconds, because the wall time on a busy host includes the
work of other programs."""
_ROOM = 0.5
"""Maximum share of free host memory that a copy of the state may take. If a copy of the state needs
more memory, training waits while the state is written without a copy."""


class ResumePoints(transformers.TrainerCallback):  # type: ignore[misc]  # untyped
    """Callback that saves resume points. Add this callback after the callback that requests
    stops."""

    def __init__(
        self,
        run: RunDirectory,
        spec: RunSpec,
        events: EventLog,
        plan: PlanFile,
        control: StopControl,
        now: Callable[[], float] = time.monotonic,
        cpu_now: Callable[[], float] = time.process_time,
    ) -> None:
        save_steps = spec.recipe.save_steps
        self._named = None if save_steps == "auto" else save_steps
        self._writer = ResumePointWriter(
            run.checkpoints, made_for(run, spec), made_with(), spec.recipe.keep_every
        )
        self._run, self._events, self._plan = run, events, plan
        self._control = control
        self._now, self._cpu_now = now, cpu_now
        self._due = self._waits = False
        self._last = -1
        self._blocked = 0.0
        """Seconds that training waited for the last resume point."""
        self._ended = self._next = 0.0
        self._cpu_spent = 0.0
        """CPU-seconds that training spent on capturing the state for the last resume point."""
        self._cpu_ended = self._cpu_next = 0.0

    def on_train_begin(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        self._last, self._next = state.global_step, self._now() + LEAST_SECONDS

    def on_step_end(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        self._report(self._writer.finish(wait=False))
        step, last = state.global_step, state.global_step == state.max_steps
        named = self._named is not None and step % self._named == 0
        self._waits = self._control.stop_requested
        # A run that ends here needs no resume point: a resumed run would train one step too many.
        continues = not (last or control.should_training_stop)
        self._due = (self._waits and not last) or (continues and (named or self._is_time()))
        if self._due:
            control.should_save = True  # saves after metrics and validation

    def on_train_end(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        self._report(self._writer.finish(wait=True))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Wait for pending writes at the end of the block, also after an error."""
        try:
            yield
        finally:
            self._writer.close()

    def save(self, trainer: Untyped) -> None:
        """Save a resume point at the end of a step, if one is due."""
        step = trainer.state.global_step
        if not self._due or step == self._last:
            return
        self._due = False
        began = self._now()
        self._report(self._writer.finish(wait=True))
        cpu_began = self._cpu_now()
        state = capture_state(trainer)
        copied = state.bytes <= _ROOM * host_free()
        state = state.copied() if copied else state
        self._cpu_ended = self._cpu_now()
        self._cpu_spent = self._cpu_ended - cpu_began
        self._writer.begin(step, state, self._plan.text())
        self._last = step
        if self._waits or not copied:
            self._report(self._writer.finish(wait=True))
        self._ended = self._now()
        self._blocked = self._ended - began
        self._next = self._ended + max(LEAST_SECONDS, COST_FACTOR * self._blocked)

    def save_interrupted_step(self, trainer: Untyped) -> None:
        """Save the state of the last finished step.

        Call this method after a stop request has interrupted a step before its weight update.
        """
        self._report(self._writer.finish(wait=True))
        self._due, self._waits = trainer.state.global_step > 0, True
        self.save(trainer)

    def _is_time(self) -> bool:
        """Return True if enough time has passed since the last save, and no write is pending."""
        late = self._now() >= self._next and self._cpu_now() >= self._cpu_next
        return late and not self._writer.busy

    def _report(self, written: WrittenPoint | None) -> None:
        if written is None:
            return
        if not torch.cuda.is_available():  # on a CPU, the writing thread slows training
            cost = self._blocked + written.cpu_seconds
            self._next = max(self._next, self._ended + COST_FACTOR * cost)
            spent = self._cpu_spent + written.cpu_seconds
            self._cpu_next = self._cpu_ended + COST_FACTOR * spent
        self._events.append(
            EventKind.RESUME_POINT,
            f"Step {written.step}: resume point saved, {written.bytes:,} bytes",
            {
                "step": written.step,
                "directory": self._run.relative(written.folder),
                "bytes": written.bytes,
            },
        )
