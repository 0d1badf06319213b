"""`client.fine_tuning.jobs`: create, follow, control, and read what came of it."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import tunesmith_schema as wire
from tunesmith._http.connection import Http, path_of
from tunesmith._http.errors import InvalidArgumentError, invalid_argument
from tunesmith._http.pages import Page, first_page
from tunesmith_schema import (
    Checkpoint,
    Event,
    Grader,
    Hyperparameters,
    JobCreate,
    JobFork,
    JobReport,
    Method,
    MetricPoint,
    Sample,
)

from .files import Files, Order
from .follow import follow
from .grader_argument import with_grader
from .job import Job, raise_unless_succeeded

DataFile = str | os.PathLike[str]
"""A file id, or a local path that is uploaded first."""

MetricPoints = list[MetricPoint]  # inside Jobs, `list` is its method

_FILE_ID = re.compile(r"file-[A-Za-z0-9_-]+")


class Jobs:
    def __init__(self, http: Http, files: Files) -> None:
        self._http = http
        self._files = files
        self.checkpoints = Checkpoints(http)

    def create(
        self,
        *,
        model: str,
        training_file: DataFile,
        validation_file: DataFile | None = None,
        suffix: str | None = None,
        seed: int | None = None,
        metadata: Mapping[str, str] | None = None,
        hyperparameters: Hyperparameters | Mapping[str, Any] | None = None,  # Any: JSON
        method: Method | Mapping[str, Any] | None = None,
        grader: Grader | Mapping[str, Any] | None = None,
        recipe: wire.Recipe | Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Starts a job. Files are ids, or local paths, which are uploaded once all else is right.
        `grader`: train by reinforcement, with this one; in place of `method`.

        A second call with the same `idempotency_key` gives the first call's job; give ids then,
        since a path is uploaded again, as another file.
        """
        given = {
            "model": model,
            "training_file": os.fspath(training_file),
            "validation_file": validation_file and os.fspath(validation_file),
            "suffix": suffix,
            "seed": seed,
            "metadata": metadata and dict(metadata),
            "hyperparameters": hyperparameters,
            "method": method,
            "recipe": recipe,
        }
        given = with_grader(given, grader)
        try:
            body = JobCreate.model_validate({k: v for k, v in given.items() if v is not None})
        except ValidationError as error:
            raise invalid_argument(error) from error
        body.training_file = self._file_id("training_file", training_file)
        if validation_file is not None:
            body.validation_file = self._file_id("validation_file", validation_file)
        job = self._http.post(
            Job,
            "fine_tuning/jobs",
            json=body.model_dump(mode="json", exclude_unset=True),
            idempotency_key=idempotency_key,
        )
        return self._bound(job)

    def list(
        self,
        *,
        limit: int | None = None,
        after: str | None = None,
        order: Order | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Page[Job]:
        filters = {f"metadata[{key}]": value for key, value in (metadata or {}).items()}

        def ask(cursor: str | None) -> wire.Page[Job]:
            params = {"limit": limit, "after": cursor, "order": order, **filters}
            page = self._http.get(wire.Page[Job], "fine_tuning/jobs", params)
            for job in page.data:
                self._bound(job)
            return page

        return first_page(ask, after)

    def retrieve(self, job_id: str) -> Job:
        return self._bound(self._http.get(Job, path_of("fine_tuning", "jobs", job_id)))

    def cancel(self, job_id: str) -> Job:
        """Asks; the job may still be `running` in the answer and stops within seconds.

        Raises BadRequestError (`code` is `not_cancellable`) for a job that succeeded or failed.
        """
        return self._ask(job_id, "cancel")

    def pause(self, job_id: str) -> Job:
        """Has a running job save a resume point and give its device back: its `state` is `pausing`
        until it has, then `paused`. A queued one is paused at once.

        Raises BadRequestError (`not_pausable`) for a job that has ended or is about to, and for one
        whose files are still being read.
        """
        return self._ask(job_id, "pause")

    def resume(self, job_id: str) -> Job:
        """Queues a paused job again, to go on from where it was; calls off a pause under way.

        Raises BadRequestError (`not_resumable`) for a job that has ended.
        """
        return self._ask(job_id, "resume")

    def stop(self, job_id: str) -> Job:
        """Has a job end at its next step and keep what it has made: it succeeds early. A job that
        waits is taken up from its resume point for that.

        Raises BadRequestError (`not_stoppable`) for a job that has ended or has nothing to keep.
        """
        return self._ask(job_id, "stop")

    def fork(
        self,
        job_id: str,
        *,
        checkpoint: str | None = None,
        step: int | None = None,
        recipe: wire.Recipe | Mapping[str, Any] | None = None,  # Any: JSON
        hyperparameters: Hyperparameters | Mapping[str, Any] | None = None,
        suffix: str | None = None,
        seed: int | None = None,
        metadata: Mapping[str, str] | None = None,
        grader: Grader | Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Starts another job from a resume point of this one: the newest, or the newest at or
        before `step`, or before that of `checkpoint`. What is given changes, the rest is this
        job's; of a Recipe or Hyperparameters only the fields that were set.

        Raises BadRequestError: `not_forkable` where there is no resume point, and with `param` for
        a change that does not fit what has been trained, such as `recipe.lora.r`.
        """
        if isinstance(recipe, wire.Recipe):
            recipe = recipe.model_dump(mode="json", exclude_unset=True)
        given = {
            "checkpoint": checkpoint,
            "step": step,
            "recipe": recipe and dict(recipe),
            "hyperparameters": hyperparameters,
            "suffix": suffix,
            "seed": seed,
            "metadata": None if metadata is None else dict(metadata),
            "grader": grader,
        }
        try:
            body = JobFork.model_validate({k: v for k, v in given.items() if v is not None})
        except ValidationError as error:
            raise invalid_argument(error) from error
        return self._bound(
            self._http.post(
                Job,
                path_of("fine_tuning", "jobs", job_id, "fork"),
                json=body.model_dump(mode="json", exclude_unset=True),
                idempotency_key=idempotency_key,
            )
        )

    def retry(self, job_id: str) -> Job:
        """Takes up a job that failed or was cancelled: a new job with the same body, which goes on
        from the newest resume point. A second call gives the same new job.

        Raises BadRequestError (`not_retryable`) for any other job.
        """
        return self._ask(job_id, "retry")

    def _ask(self, job_id: str, verb: str) -> Job:
        return self._bound(self._http.post(Job, path_of("fine_tuning", "jobs", job_id, verb)))

    def list_events(
        self,
        job_id: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        order: Order | None = None,
    ) -> Page[Event]:
        path = path_of("fine_tuning", "jobs", job_id, "events")

        def ask(cursor: str | None) -> wire.Page[Event]:
            params = {"limit": limit, "after": cursor, "order": order}
            return self._http.get(wire.Page[Event], path, params)

        return first_page(ask, after)

    def stream(self, job_id: str, after_seq: int | None = None) -> Generator[Event, None, None]:
        """Every event after `after_seq`, past and coming, until the job is over."""
        for item in follow(self._http, job_id, after_seq=after_seq):
            if isinstance(item, Event):
                yield item

    def metrics(self, job_id: str) -> MetricPoints:
        """All points, first step first."""
        path = path_of("fine_tuning", "jobs", job_id, "metrics")

        def ask(cursor: str | None) -> wire.Page[MetricPoint]:
            return self._http.get(
                wire.Page[MetricPoint], path, {"after": cursor, "order": "asc", "limit": 1000}
            )

        return [*first_page(ask, None)]

    def samples(
        self,
        job_id: str,
        *,
        step: int | None = None,
        after: str | None = None,
        limit: int | None = None,
        order: Order | None = None,
    ) -> Page[Sample]:
        """What a reinforcement job drew and how it was graded, newest first: of all steps, or of
        one. At most 100 a page; iterating goes on to the pages after it."""
        path = path_of("fine_tuning", "jobs", job_id, "samples")

        def ask(cursor: str | None) -> wire.Page[Sample]:
            params = {"step": step, "limit": limit, "after": cursor, "order": order}
            return self._http.get(wire.Page[Sample], path, params)

        return first_page(ask, after)

    def report(self, job_id: str, *, attempt: int | None = None) -> JobReport:
        """Where the time went, what bounds the run, what would help; of the newest attempt, or of
        the one given. Raises NotFoundError while there is none (`code` is `no_report`)."""
        path = path_of("fine_tuning", "jobs", job_id, "report")
        return self._http.get(JobReport, path, {"attempt": attempt})

    def wait(self, job_id: str, timeout: float | None = None, progress: bool = False) -> Job:
        """The job once it has succeeded; see `Job.wait`."""
        job = self.wait_until_over(job_id, timeout, progress)
        raise_unless_succeeded(job)
        return job

    def wait_until_over(self, job_id: str, timeout: float | None, progress: bool) -> Job:
        """The job once it is over, well or badly."""
        if progress:
            from .progress import ProgressView  # rich takes a while to import

            view = ProgressView()
        else:
            view = None
        with view or nullcontext():
            for item in follow(self._http, job_id, timeout=timeout):
                if isinstance(item, Job):
                    return self._bound(item)
                if view is not None:
                    view.show(item)
        raise AssertionError("follow() ends with the job")

    def _bound(self, job: Job) -> Job:
        job._jobs = self
        return job

    def _file_id(self, argument: str, file: DataFile) -> str:
        if isinstance(file, str) and _FILE_ID.fullmatch(file):
            return file
        path = Path(file)
        if not path.is_file():
            raise InvalidArgumentError(
                f"{argument} is neither a file id (file-...) nor a file here: {os.fspath(file)!r}",
                hint=f"the current directory is {Path.cwd()}",
            )
        return self._files.create(file=path).id


class Checkpoints:
    def __init__(self, http: Http) -> None:
        self._http = http

    def list(
        self, job_id: str, *, after: str | None = None, limit: int | None = None
    ) -> Page[Checkpoint]:
        path = path_of("fine_tuning", "jobs", job_id, "checkpoints")

        def ask(cursor: str | None) -> wire.Page[Checkpoint]:
            params = {"limit": limit, "after": cursor}
            return self._http.get(wire.Page[Checkpoint], path, params)

        return first_page(ask, after)


class FineTuning:
    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
