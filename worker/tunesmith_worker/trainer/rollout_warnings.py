"""Warnings about suspicious metrics during a reinforcement run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import transformers
from transformers.trainer_callback import ExportableState

from tunesmith_schema import Precision
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.trainer.selfcheck.findings import report_findings
from tunesmith_worker.trainer.selfcheck.tripwires import RolloutFigures, RolloutTripwires

Untyped = Any  # Any: transformers is not typed


class RolloutWarnings(transformers.TrainerCallback, ExportableState):  # type: ignore[misc]  # untyped
    def __init__(
        self,
        events: EventLog,
        precision: Precision,
        *,
        groups_with_spread: Callable[[], int],
        will_resume: Callable[[], bool],
    ) -> None:
        """`groups_with_spread`: function that returns how many groups of the run so far have
        completions with different rewards. `will_resume`: function that returns True if the run
        stops now and will be resumed later."""
        self._events, self._tripwires = events, RolloutTripwires(precision)
        self._groups_with_spread, self._will_resume = groups_with_spread, will_resume

    @property
    def watched(self) -> dict[str, Untyped]:
        """State of the warnings (`RolloutTripwires`) as JSON."""
        return self._tripwires.state()

    @watched.setter
    def watched(self, state: dict[str, Untyped]) -> None:
        self._tripwires.restore(state)

    def state(self) -> dict[str, Untyped]:
        return {"args": {}, "attributes": {"watched": self.watched}}

    def on_log(
        self,
        args: Untyped,
        state: Untyped,
        control: Untyped,
        logs: dict[str, Untyped] | None = None,
        **_: Untyped,
    ) -> None:
        logs = logs or {}
        if "loss" not in logs:
            return
        names = ("frac_reward_zero_std", "truncated_share", "entropy", "kl", "clip_ratio")
        figures = RolloutFigures(
            step=state.global_step,
            rollout_gap=logs.get("rollout_gap"),
            **{name: logs.get(name) for name in names},
        )
        report_findings(self._tripwires.check_gap(figures), self._events, state.global_step)
        self._warn(self._tripwires.step(figures), state)

    def on_train_end(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        if state.global_step == state.max_steps or not self._will_resume():
            self._warn(self._tripwires.end(self._groups_with_spread()), state)

    def _warn(self, texts: Sequence[str], state: Untyped) -> None:
        for text in texts:
            self._events.message(text, level="warn", data={"step": state.global_step})
