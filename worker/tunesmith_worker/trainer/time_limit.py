"""Limit of the training time: `recipe.max_seconds`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import transformers
from transformers.trainer_callback import ExportableState

from tunesmith_worker.rundir.control import EarlyEnd

Untyped = Any  # Any: transformers is not typed


class TimeLimit(transformers.TrainerCallback, ExportableState):  # type: ignore[misc]  # untyped
    """Counts the seconds of training over all attempts.

    This class is a trainer callback, because resume points contain the state of callbacks. If an
    attempt is lost, the steps after its last resume point are trained again, but the time of a step
    counts only once.
    """

    def __init__(
        self,
        max_seconds: float | None,
        *,
        forked: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_seconds, self._forked, self._now = max_seconds, forked, now
        self._began: float | None = None
        self.earlier_seconds = 0.0
        """Seconds of earlier attempts, up to the resume point."""

    def state(self) -> dict[str, Untyped]:
        return {"args": {}, "attributes": {"earlier_seconds": self.seconds}}

    def on_train_begin(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        if self._forked:
            self.earlier_seconds = 0.0  # a fork does not count the original job's time
        self._began = self._now()

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return self.earlier_seconds + (0.0 if self._began is None else self._now() - self._began)

    def reached(self) -> EarlyEnd | None:
        """Return the reason to end the run after this step if the time is over, else None."""
        seconds = self.seconds
        if self._max_seconds is None or seconds < self._max_seconds:
            return None
        return EarlyEnd(
            text=f"after {seconds:.0f} s of training, because recipe.max_seconds is "
            f"{self._max_seconds:g}",
            data={"seconds": round(seconds, 3), "max_seconds": self._max_seconds},
        )
