"""`client.fine_tuning.jobs`: create, list, wait for and control jobs."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

import tunesmith_schema as wire
from tunesmith._http.connection import Http, path_of
from tunesmith._http.errors import invalid_argument
from tunesmith._http.pages import Page, first_page
from tunesmith_schema import (
    Grader,
    Hyperparameters,
    JobCreate,
    JobDeleted,
    JobFork,
    JobPatch,
    JobValidation,
    Method,
    RecipeField,
)
from tunesmith_schema.comparison import Axis, JobComparison

from .files import DataFile, Files, Order
from .follow import follow
from .follow_many import Item, follow_many
from .grader_argument import with_grader
from .job import Job, raise_unless_succeeded
from .job_links import JobLinks
from .job_output import JobOutput
from .permissions import Checkpoints
from .status_poll import StatusPoll

if TYPE_CHECKING:
    from .progress import ProgressView

_CHECKED_LATER = "file-"
"""Placeholder for a file while the other arguments are checked. If the caller passes a local path,
the file is uploaded only after this check."""


class Jobs(JobOutput):
    """Fine-tuning jobs. Repeating a command such as `cancel` is safe."""

    def __init__(self, http: Http, files: Files) -> None:
        super().__init__(http)
        self._files = files
        self.links = JobLinks(http)

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
        scheduling: wire.Scheduling | Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Start a job. After all arguments have been checked, local files are uploaded with
        `client.files.create`. `grader` replaces `method` and selects reinforcement. `scheduling`
        sets the priority, makes the job interactive, or names requirements on the worker.

        A second call with the same `idempotency_key` returns the job of the first call. With an
        `idempotency_key`, pass file ids instead of paths, because a path may get a new file id in
        the second call.
        """
        arguments = {
            "model": model,
            "training_file": _CHECKED_LATER,
            "validation_file": None if validation_file is None else _CHECKED_LATER,
            "suffix": suffix,
            "seed": seed,
            "metadata": metadata and dict(metadata),
            "hyperparameters": hyperparameters,
            "method": method,
            "recipe": recipe,
            "scheduling": scheduling,
        }
        arguments = with_grader(arguments, grader)
        try:
            body = JobCreate.model_validate({k: v for k, v in arguments.items() if v is not None})
        except ValidationError as error:
            raise invalid_argument(error) from error
        body.training_file = self._files.id_of("training_file", training_file)
        if validation_file is not None:
            body.validation_file = self._files.id_of("validation_file", validation_file)
        job = self._http.post(
            Job,
            "fine_tuning/jobs",
            json=body.model_dump(mode="json", exclude_unset=True),
            idempotency_key=idempotency_key,
        )
        return self._bind(job)

    def validate(self, body: Mapping[str, Any]) -> JobValidation:  # Any: JSON
        """Validate the body of a create request, such as `{"model": ..., "training_file": ...}`, on
        the server. Nothing is created; the result lists all problems. Files must be given by id."""
        return self._http.post(
            JobValidation, "fine_tuning/jobs", params={"validate_only": "true"}, json=dict(body)
        )

    def list(
        self,
        *,
        limit: int | None = None,
        after: str | None = None,
        order: Order | None = None,
        metadata: Mapping[str, str] | None = None,
        state: str | Sequence[str] | None = None,
        method: str | None = None,
        model: str | None = None,
        text: str | None = None,
        created_after: int | None = None,
        created_before: int | None = None,
        finished_after: int | None = None,
        warned_after: int | None = None,
        owner: str | None = None,
        forked_from: str | None = None,
        retry_of: str | None = None,
        pinned: bool | None = None,
        with_curve: bool = False,
    ) -> Page[Job]:
        """List jobs that meet all of the filters, newest first. `metadata`: key-value pairs that
        the job's metadata must contain. `state`: the job is in one of the given states. `method`:
        `supervised` or `reinforcement`. `model`: name of the base model or the tuned model. `text`:
        a part of the id, the suffix or a model's name. `created_after` (included),
        `created_before`: Unix seconds. `finished_after`: the job ended at or after this time.
        `warned_after`: the job had a warning or an error at or after this time. `owner`: id or name
        of the API key. `with_curve` adds a small curve of the main metric.
        """
        filters: dict[str, Any] = {  # Any: values of httpx
            "state": [state] if isinstance(state, str) else state,
            "method": method,
            "model": model,
            "text": text,
            "created_after": created_after,
            "created_before": created_before,
            "finished_after": finished_after,
            "warned_after": warned_after,
            "owner": owner,
            "forked_from": forked_from,
            "retry_of": retry_of,
            "pinned": pinned,
            "include": "curve" if with_curve else None,
            **{f"metadata[{key}]": value for key, value in (metadata or {}).items()},
        }

        def fetch(cursor: str | None) -> wire.Page[Job]:
            params = {"limit": limit, "after": cursor, "order": order, **filters}
            page = self._http.get(wire.Page[Job], "fine_tuning/jobs", params)
            for job in page.data:
                self._bind(job)
            return page

        return first_page(fetch, after)

    def retrieve(self, job_id: str) -> Job:
        return self._bind(self._http.get(Job, path_of("fine_tuning", "jobs", job_id)))

    def edit(self, job_id: str, **fields: Any) -> Job:  # Any: as JobPatch checks
        """Change `name`, `notes`, `pinned` or `metadata` of a job. Other fields keep their values;
        None removes a name, notes or metadata."""
        try:
            body = JobPatch.model_validate(fields)
        except ValidationError as error:
            raise invalid_argument(error) from error
        json = body.model_dump(mode="json", exclude_unset=True)
        return self._bind(self._http.patch(Job, path_of("fine_tuning", "jobs", job_id), json))

    def cancel(self, job_id: str) -> Job:
        """End a job and keep only its checkpoints. A running job stops within seconds.

        Raises BadRequestError (`code` is `not_cancellable`) for a job that succeeded or failed.
        """
        return self._send(job_id, "cancel")

    def delete(self, job_id: str) -> JobDeleted:
        """Delete an ended job with its tuned models, checkpoints, resume points, samples, metrics
        and events. The job's data files are kept.

        Raises BadRequestError (`not_deletable`) for a job that has not ended, and ConflictError
        (`job_in_use`) if an unfinished job starts from this job.
        """
        return self._http.delete(JobDeleted, path_of("fine_tuning", "jobs", job_id))

    def pause(self, job_id: str) -> Job:
        """Pause a job. A running job saves a resume point and frees its GPU: its `state` is
        `pausing`, then `paused`. A queued job is `paused` immediately.

        Raises BadRequestError (`not_pausable`) for a job that has ended or is ending, and for a job
        in `validating_files`.
        """
        return self._send(job_id, "pause")

    def resume(self, job_id: str) -> Job:
        """Queue a paused job, which then continues from its resume point. If the job is still
        pausing, cancel the pause.

        Raises BadRequestError (`not_resumable`) for a job that has ended.
        """
        return self._send(job_id, "resume")

    def stop(self, job_id: str) -> Job:
        """End a job at its next step and keep its result: the job succeeds early. A queued or
        paused job with a resume point runs once more, only to save its result.

        Raises BadRequestError (`not_stoppable`) for a job that has ended or has no result to keep.
        """
        return self._send(job_id, "stop")

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
        """Start a new job from a resume point of this job. `step`, or the step of `checkpoint`,
        selects the newest resume point at or before this step. The default is the newest resume
        point. Arguments that you leave out are copied from this job. If you pass an object as
        `recipe` or `hyperparameters`, fields that you did not set are copied too.

        Raises BadRequestError (`not_forkable`) if there is no resume point. Raises BadRequestError
        with `param` if a change contradicts the trained weights, such as `recipe.lora.r`.
        """
        if isinstance(recipe, wire.Recipe):
            recipe = recipe.model_dump(mode="json", exclude_unset=True)
        arguments = {
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
            body = JobFork.model_validate({k: v for k, v in arguments.items() if v is not None})
        except ValidationError as error:
            raise invalid_argument(error) from error
        return self._bind(
            self._http.post(
                Job,
                path_of("fine_tuning", "jobs", job_id, "fork"),
                json=body.model_dump(mode="json", exclude_unset=True),
                idempotency_key=idempotency_key,
            )
        )

    def retry(self, job_id: str) -> Job:
        """Repeat a failed or cancelled job as a new job from the newest resume point. Each call
        creates exactly one new job, even if the SDK repeats the HTTP request.

        Raises BadRequestError (`not_retryable`) for a job that is unfinished or has succeeded.
        """
        return self._send(job_id, "retry")

    def _send(self, job_id: str, command: str) -> Job:
        return self._bind(self._http.post(Job, path_of("fine_tuning", "jobs", job_id, command)))

    def wait(self, job_id: str, timeout: float | None = None, progress: bool = False) -> Job:
        """Wait until the job has succeeded, and return the job; see `Job.wait`."""
        job = self.wait_until_over(job_id, timeout, progress, None)
        raise_unless_succeeded(job)
        return job

    def wait_until_over(
        self, job_id: str, timeout: float | None, progress: bool, known: Job | None
    ) -> Job:
        """Wait until the job has succeeded, failed or been cancelled, and return the job. `known`
        is the job's last known state, which the progress display shows first."""
        if not progress:
            return self._until_over(job_id, timeout, None)
        from .progress import ProgressView  # importing rich is slow

        path = path_of("fine_tuning", "jobs", job_id)
        with (
            ProgressView(job=known) as view,
            StatusPoll(lambda: self._http.get(Job, path), view.show_job),
        ):
            return self._until_over(job_id, timeout, view)

    def _until_over(self, job_id: str, timeout: float | None, view: ProgressView | None) -> Job:
        on_connection = view.show_connection if view else None
        for item in follow(self._http, job_id, timeout=timeout, on_connection=on_connection):
            if isinstance(item, Job):
                return self._bind(item)
            if view is not None:
                view.show(item)
        raise AssertionError("follow() ends with the job")

    def _bind(self, job: Job) -> Job:
        job._requests = self
        return job


class FineTuning:
    """`client.fine_tuning`."""

    def __init__(self, http: Http, jobs: Jobs, checkpoints: Checkpoints) -> None:
        self._http = http
        self.jobs = jobs
        self.checkpoints = checkpoints

    def stream(
        self, jobs: Mapping[str, int] | Sequence[str] = (), *, everything: bool = False
    ) -> Generator[Item, None, None]:
        """Yield the past and future events of up to 20 jobs over one connection, and each job when
        it has ended. If `jobs` is a mapping, each key is a job id, and its value is the sequence
        number of the last known event of this job. With `everything`, also yield the `JobProgress`
        of each unfinished job of the project, now and after each change. With `everything`, the
        iteration does not end."""
        for item in follow_many(self._http, jobs, everything=everything):
            if isinstance(item, Job):
                self.jobs._bind(item)
            yield item

    def compare(
        self,
        job_ids: Sequence[str],
        *,
        axis: Axis | None = None,
        points: int | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> JobComparison:
        """Compare two to eight jobs: results, curves, and the settings that differ. `axis`
        is the x axis of the curves: `step` (default), `tokens` or `hours`. A curve has at most
        `points` values (default 500). Curves and best values are limited to the steps from `first`
        to `last`."""
        params = {
            "jobs": ",".join(job_ids),
            "axis": axis,
            "points": points,
            "from": first,
            "to": last,
        }
        return self._http.get(JobComparison, "fine_tuning/compare", params)

    def recipe_fields(self) -> list[RecipeField]:
        """List all fields of the recipe: types, limits, default and meaning."""
        return self._http.get(wire.Page[RecipeField], "fine_tuning/recipe").data
