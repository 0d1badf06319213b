"""The SDK's job object with its methods, and the errors of jobs that did not succeed."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from typing import Protocol, Self

from pydantic import PrivateAttr

import tunesmith_schema as wire
from tunesmith._http.errors import TunesmithError
from tunesmith._http.pages import Page
from tunesmith_schema import (
    MAX_SAMPLES_PAGE,
    TERMINAL,
    ErrorCategory,
    Event,
    JobError,
    JobEvaluation,
    JobReport,
    JobState,
    MetricPoint,
    Sample,
)

from .plot import MAX_POINTS, METRICS, Plot, panels_of, points_of_job


class JobRequests(Protocol):
    """The methods of `client.fine_tuning.jobs` that a `Job` object calls."""

    def retrieve(self, job_id: str) -> Job: ...
    def cancel(self, job_id: str) -> Job: ...
    def pause(self, job_id: str) -> Job: ...
    def resume(self, job_id: str) -> Job: ...
    def stop(self, job_id: str) -> Job: ...
    def wait_until_over(
        self, job_id: str, timeout: float | None, progress: bool, known: Job | None
    ) -> Job: ...
    def stream(self, job_id: str, after_seq: int | None) -> Generator[Event, None, None]: ...
    def metrics(self, job_id: str) -> list[MetricPoint]: ...
    def curves(
        self, job_id: str, *, names: Sequence[str] | None, points: int | None
    ) -> wire.MetricColumns: ...
    def samples(self, job_id: str, *, step: int | None, limit: int | None) -> Page[Sample]: ...
    def report(self, job_id: str, *, attempt: int | None) -> JobReport: ...
    def evaluation(self, job_id: str) -> JobEvaluation: ...


class Job(wire.Job):
    """One fine-tuning job; the methods update the object in place."""

    _requests: JobRequests = PrivateAttr()

    def wait(self, timeout: float | None = None, progress: bool = False) -> Self:
        """Wait until the job has succeeded, at most `timeout` seconds; `progress` shows a bar.

        Waiting continues across server restarts and while the job is paused.
        Raises JobFailedError, JobCancelledError or WaitTimeoutError.
        """
        if self.state not in TERMINAL:
            self._update(self._requests.wait_until_over(self.id, timeout, progress, self))
        raise_unless_succeeded(self)
        return self

    def stream(self, after_seq: int | None = None) -> Generator[Event, None, None]:
        """Yield every event of the job, past and future, until the job ends."""
        return self._requests.stream(self.id, after_seq)

    def metrics(self) -> list[MetricPoint]:
        """Return the job's metrics, one point per logged step."""
        return self._requests.metrics(self.id)

    def plot(self, file: str | os.PathLike[str] | None = None) -> Plot:
        """Plot the training and validation curves. A notebook shows the returned plot; `file`
        saves it, for example as `loss.png`. Needs matplotlib: `pip install 'tunesmith[plot]'`."""
        found = self._requests.curves(self.id, names=METRICS, points=MAX_POINTS)
        plot = Plot(panels_of({self.id: points_of_job(found)}))
        if file is not None:
            plot.save(file)
        return plot

    def samples(self, step: int | None = None) -> Iterator[Sample]:
        """Iterate over a reinforcement job's completions, newest first; `step` selects one step."""
        return iter(self._requests.samples(self.id, step=step, limit=MAX_SAMPLES_PAGE))

    def report(self, *, attempt: int | None = None) -> JobReport:
        """Return the report on time, memory and bottleneck; see `jobs.report`."""
        return self._requests.report(self.id, attempt=attempt)

    def full_evaluation(self) -> JobEvaluation:
        """Return the evaluation with scores, comparisons and answers; see `jobs.evaluation`."""
        return self._requests.evaluation(self.id)

    def cancel(self) -> Self:
        """End the job and keep only its checkpoints; see `jobs.cancel`."""
        return self._update(self._requests.cancel(self.id))

    def pause(self) -> Self:
        """Save a resume point and free the GPU; see `jobs.pause`."""
        return self._update(self._requests.pause(self.id))

    def resume(self) -> Self:
        """Queue the paused job again; see `jobs.resume`."""
        return self._update(self._requests.resume(self.id))

    def stop(self) -> Self:
        """End the job at its next step and keep its result; see `jobs.stop`."""
        return self._update(self._requests.stop(self.id))

    def refresh(self) -> Self:
        """Fetch the current state of the job."""
        return self._update(self._requests.retrieve(self.id))

    def _update(self, newer: Job) -> Self:
        self.__dict__.update(newer.__dict__)
        self.__pydantic_extra__ = newer.__pydantic_extra__
        self.__pydantic_fields_set__ = newer.__pydantic_fields_set__
        return self


class JobNotSucceededError(TunesmithError):
    """A job ended without a tuned model; `job` is its final state."""

    def __init__(self, message: str, *, job: Job, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.job = job


class JobFailedError(JobNotSucceededError, RuntimeError):
    """The job failed; `code` and `category` give the reason."""

    def __init__(self, job: Job) -> None:
        error = job.error or JobError()
        self.code: str | None = error.code
        self.category: ErrorCategory | None = error.category
        code = f" ({error.code})" if error.code else ""
        reason = error.message or "the server gave no reason"
        super().__init__(f"job {job.id} failed{code}: {reason}", job=job, hint=error.hint)


class JobCancelledError(JobNotSucceededError):
    """The job was cancelled."""

    def __init__(self, job: Job) -> None:
        super().__init__(f"job {job.id} was cancelled", job=job)


def raise_unless_succeeded(job: Job) -> None:
    if job.state is JobState.FAILED:
        raise JobFailedError(job)
    if job.state is JobState.CANCELLED:
        raise JobCancelledError(job)
