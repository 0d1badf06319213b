"""The job that the SDK hands out: the wire's job, plus what one does with it next."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Self

from pydantic import PrivateAttr

import tunesmith_schema as wire
from tunesmith._http.errors import JobCancelledError, JobFailedError
from tunesmith_schema import (
    MAX_SAMPLES_PAGE,
    TERMINAL,
    Event,
    JobReport,
    JobState,
    MetricPoint,
    Sample,
)

if TYPE_CHECKING:
    from .jobs import Jobs


class Job(wire.Job):
    """One fine-tuning job. What is asked of it brings this very object up to date."""

    _jobs: Jobs = PrivateAttr()

    def wait(self, timeout: float | None = None, progress: bool = False) -> Self:
        """Returns when the job has succeeded; `timeout` in seconds, `progress` draws a bar.

        Raises JobFailedError, JobCancelledError or WaitTimeoutError. A server that restarts
        meanwhile is waited for, and so is a paused job until somebody resumes it.
        """
        if self.state not in TERMINAL:
            self._become(self._jobs.wait_until_over(self.id, timeout, progress))
        raise_unless_succeeded(self)
        return self

    def stream(self, after_seq: int | None = None) -> Generator[Event, None, None]:
        """Every event of the job, past and coming, until it is over."""
        return self._jobs.stream(self.id, after_seq)

    def metrics(self) -> list[MetricPoint]:
        """Loss and the like, one point a logged step."""
        return self._jobs.metrics(self.id)

    def samples(self, step: int | None = None) -> Iterator[Sample]:
        """What a reinforcement job drew, newest first; of one step, or of all."""
        return iter(self._jobs.samples(self.id, step=step, limit=MAX_SAMPLES_PAGE))

    def report(self, *, attempt: int | None = None) -> JobReport:
        """Where the time went, what bounds the run, and what would help."""
        return self._jobs.report(self.id, attempt=attempt)

    def cancel(self) -> Self:
        """See `jobs.cancel`, and so on: what each does and refuses is said there."""
        return self._become(self._jobs.cancel(self.id))

    def pause(self) -> Self:
        return self._become(self._jobs.pause(self.id))

    def resume(self) -> Self:
        return self._become(self._jobs.resume(self.id))

    def stop(self) -> Self:
        return self._become(self._jobs.stop(self.id))

    def refresh(self) -> Self:
        return self._become(self._jobs.retrieve(self.id))

    def _become(self, newer: Job) -> Self:
        self.__dict__.update(newer.__dict__)
        self.__pydantic_extra__ = newer.__pydantic_extra__
        self.__pydantic_fields_set__ = newer.__pydantic_fields_set__
        return self


def raise_unless_succeeded(job: Job) -> None:
    if job.state is JobState.FAILED:
        raise JobFailedError(job)
    if job.state is JobState.CANCELLED:
        raise JobCancelledError(job)
