"""Speed of a running job."""

from __future__ import annotations

from typing import Protocol


class Measured(Protocol):
    """Job with the columns from which its speed is computed: a JobRow, or a row of a query with
    these columns."""

    @property
    def step(self) -> int: ...
    @property
    def measured_at(self) -> float | None: ...
    @property
    def measured_step(self) -> int | None: ...


def seconds_per_step(job: Measured, now: float) -> float | None:
    """Return the mean duration of a step since the first measured step of the current attempt. The
    start-up before this step does not count. Return None before the second measured step."""
    if job.measured_at is None or job.measured_step is None:
        return None
    done, seconds = job.step - job.measured_step, now - job.measured_at
    return seconds / done if done > 0 and seconds > 0 else None
