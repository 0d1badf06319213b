"""Base of the callbacks that check a step of the run against plain torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import transformers

from tunesmith_schema import PhaseName
from tunesmith_worker.engine.memory.retry import release_cached_memory
from tunesmith_worker.engine.model.embeddings import embedding_parameters
from tunesmith_worker.rundir.errors import is_out_of_memory
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.trainer.report.recorder import RunRecorder
from tunesmith_worker.trainer.selfcheck.check_context import CheckContext
from tunesmith_worker.trainer.selfcheck.findings import Finding

from .schedule import learning_rate_at
from .update import Rates, decaying

Untyped = Any  # Any: transformers and TRL are not typed


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """Result of the comparison of loss and gradient."""

    detail: str
    """Text about the comparison: what was compared and the differences, or the reason why nothing
    was compared."""
    findings: tuple[Finding, ...] = ()


def unless_memory_runs_out(compare: Callable[[], StepReport]) -> StepReport:
    """Return the comparison of loss and gradient, or a report that says that memory ran out."""
    try:
        return compare()
    except Exception as error:  # out-of-memory errors have several types
        if not is_out_of_memory(error):
            raise
    release_cached_memory()
    return StepReport(detail="loss and gradient were not compared: memory ran out")


class StepCheck(Protocol):
    """Comparison of a step's loss and gradient, for one training method."""

    def start(self) -> None:
        """Prepare the comparison with plain torch, before the attempt's first step."""

    def compare(self) -> StepReport:
        """Compare loss and gradient after backward and clipping, before the optimizer step.

        This method changes no tensor.
        """

    def examples(self) -> list[tuple[int, ...]]:
        """Return a key for each example of the current step. Return no keys if the step is meant to
        reuse the examples of earlier steps.
        """

    def look(self) -> list[Finding]:
        """Check a later step between backward and optimizer step; return findings."""


class StepWatch(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    def __init__(
        self,
        context: CheckContext,
        check: StepCheck,
        events: EventLog,
        recorder: RunRecorder,
        *,
        exclude_time: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """`exclude_time`: function that excludes the seconds of a check from tokens per second and
        similar rates."""
        self.context, self.check, self.events, self.recorder = context, check, events, recorder
        self._exclude_time = exclude_time
        self.seconds = 0.0
        """Seconds of all checks so far."""

    @contextmanager
    def checking(self) -> Iterator[None]:
        """Count the time of the block as time of the self-check."""
        began = time.perf_counter()
        with self.recorder.clock.during(PhaseName.SELF_CHECK):
            yield
        seconds = time.perf_counter() - began
        self.seconds += seconds
        self._exclude_time(seconds)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        optimizer = self.context.trainer.optimizer
        inner: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
        return inner

    def wanted_rates(self, update: int) -> Callable[[str, Untyped], Rates]:
        """Return a function that takes a parameter and returns the learning rate and the weight
        decay that the recipe requires.

        `update`: number of earlier updates of the run.
        """
        context = self.context
        plan, peak = context.train_plan, context.trainer.embedding_rate
        now = learning_rate_at(update, plan)
        embedding = {id(p) for p in embedding_parameters(context.model)} if peak else set()
        decayed = decaying(context.model)

        def rates(name: str, parameter: Untyped) -> Rates:
            rate = now
            if id(parameter) in embedding:
                rate = now * peak / plan.learning_rate if plan.learning_rate else now
            return Rates(rate=rate, decay=plan.weight_decay if name in decayed else 0.0)

        return rates
