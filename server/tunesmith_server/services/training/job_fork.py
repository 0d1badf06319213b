"""Forks and retries: jobs that start from another job's resume point. A fork changes the recipe.

Forks and retries are created like any other job. This module only reads resume point rows;
resume_points.py writes them.
"""

from __future__ import annotations

import hashlib
from typing import Any

from pydantic import JsonValue, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, Job, JobCreate, JobFork, JobState, Recipe
from tunesmith_schema.documents import Unreadable
from tunesmith_schema.forks import first_fixed_change, merged
from tunesmith_server.core.errors import BadRequest, validation_body
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import CheckpointRow, JobRow, ResumePointRow

from . import events, job_create, jobs, stored_job
from .job_create import Origin, Requester


def fork(
    session: Session,
    settings: Settings,
    wake_ups: WakeUps,
    job_id: str,
    body: JobFork,
    requester: Requester,
) -> tuple[Job, bool]:
    """Create a job from a resume point of `job_id`. If this request already created a job, return
    that job and True."""
    digest = _digest("fork", job_id, body.model_dump_json())
    if earlier := job_create.find_earlier(session, requester, digest):
        return jobs.to_wire(earlier), True
    parent = jobs.lock(session, job_id)  # protects the resume points until the fork is inserted
    requested = _requested_step(session, parent, body)
    step = _resume_step(session, parent, requested)
    origin = Origin(description=f"forked from {job_id} at step {step}", job_id=job_id, step=step)
    create_body = _with_priority(_changed_body(parent, body, step), requester)
    job = job_create.insert(session, settings, wake_ups, create_body, requester, digest, origin)
    if requested is not None and requested != step:
        message = f"step {requested} has no resume point: the fork starts from step {step} instead"
        data: dict[str, JsonValue] = {"step": step, "asked": requested}
        events.add(session, job, message, level="warn", data=data)
    return jobs.to_wire(job), False


def retry(
    session: Session, settings: Settings, wake_ups: WakeUps, job_id: str, requester: Requester
) -> tuple[Job, bool]:
    """Create a job with the model, files and settings of `job_id`, which continues from that job's
    newest resume point. If this request already created a job, return that job and True."""
    digest = _digest("retry", job_id)
    if earlier := job_create.find_earlier(session, requester, digest):
        return jobs.to_wire(earlier), True
    old = jobs.lock(session, job_id)
    if old.state not in (JobState.FAILED, JobState.CANCELLED):
        succeeded = old.state == JobState.SUCCEEDED
        raise BadRequest(
            ErrorCode.NOT_RETRYABLE,
            f"job {job_id!r} {'has succeeded' if succeeded else f'is {old.state}'}: only a failed "
            "or cancelled job can be retried",
            hint="POST /v1/fine_tuning/jobs creates a new job"
            if succeeded
            else f"POST /v1/fine_tuning/jobs/{job_id}/fork starts from one of its resume points",
        )
    body = _with_priority(_validated(body_of(old)), requester)
    origin = _origin_of_retry(session, old)
    job = job_create.insert(session, settings, wake_ups, body, requester, digest, origin)
    return jobs.to_wire(job), False


def has_changed(session: Session, job: JobRow) -> bool:
    """Return True if a job differs from its origin in a field that affects resume points."""
    origin = session.get(JobRow, job.forked_from) if job.forked_from else None
    names = ("model", "training_file", "validation_file", "seed", "recipe", "hyperparameters")
    return origin is not None and (
        not stored_job.same_documents(origin, job, names)
        or _reinforcement(origin) != _reinforcement(job)
    )


def _reinforcement(job: JobRow) -> dict[str, Any] | None:  # Any: JSON
    return job.method.get("reinforcement") if isinstance(job.method, dict) else None


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _resume_steps(session: Session, job_id: str) -> list[int]:
    points = select(ResumePointRow.step).where(ResumePointRow.job_id == job_id)
    return list(session.scalars(points.order_by(ResumePointRow.step.desc())))


def _requested_step(session: Session, parent: JobRow, body: JobFork) -> int | None:
    if body.checkpoint is None:
        return body.step
    checkpoint = session.get(CheckpointRow, body.checkpoint)
    if checkpoint is None or checkpoint.job_id != parent.id:
        raise BadRequest(
            ErrorCode.NOT_FOUND,
            f"checkpoint: job {parent.id!r} has no checkpoint {body.checkpoint!r}",
            param="checkpoint",
            hint=f"GET /v1/fine_tuning/jobs/{parent.id}/checkpoints lists them",
        )
    return checkpoint.step


def _resume_step(session: Session, parent: JobRow, requested: int | None) -> int:
    steps = _resume_steps(session, parent.id)
    if not steps:
        raise BadRequest(
            ErrorCode.NOT_FORKABLE,
            f"job {parent.id!r} has no resume point to fork from",
            hint="a job stores resume points while it trains; after success, it keeps only the "
            "resume points set by recipe.keep_every",
        )
    step_list = ", ".join(str(step) for step in reversed(steps))
    reached = max(steps[0], parent.step or 0)
    if requested is not None and not steps[-1] <= requested <= reached:
        raise BadRequest(
            ErrorCode.NOT_FORKABLE,
            f"step: job {parent.id!r} cannot be forked at step {requested}: its first resume point "
            f"is at step {steps[-1]}, and it has reached step {reached}",
            param="step",
            hint=f"its resume points: {step_list}",
        )
    return steps[0] if requested is None else next(step for step in steps if step <= requested)


def _changed_body(parent: JobRow, body: JobFork, step: int) -> JobCreate:
    old = _recipe_of(parent)
    changes: dict[str, Any] = {
        name: value
        for name in ("suffix", "seed", "metadata")
        if (value := getattr(body, name)) is not None
    }
    changes |= _changed_method(parent, body)
    changed = _validated(body_of(parent) | changes | {"recipe": merged(old, body.recipe)})
    new = changed.recipe
    if differs := first_fixed_change(old, new):
        name, before, after = differs
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"recipe.{name}: a fork cannot change this field from {before!r} to {after!r}, because "
            "the weights in the resume point depend on it",
            param=f"recipe.{name}",
            hint="leave the field out, or create a new job",
        )
    if new.max_steps != "auto" and new.max_steps <= step:
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"recipe.max_steps: {new.max_steps} leaves no step to train, because the fork starts "
            f"at step {step}",
            param="recipe.max_steps",
            hint=f"set more than {step} steps, or fork from an earlier step",
        )
    return changed


def _changed_method(parent: JobRow, body: JobFork) -> dict[str, Any]:  # Any: JSON
    changes = body.hyperparameters
    changed = changes.model_dump(mode="json", exclude_unset=True) if changes else {}
    if (old := _reinforcement(parent)) is not None:
        new = {**old, "hyperparameters": {**old["hyperparameters"], **changed}}
        if body.grader is not None:
            new["grader"] = body.grader.model_dump(mode="json")
        return {"method": {"type": "reinforcement", "reinforcement": new}}
    if body.grader is not None:
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"grader: job {parent.id!r} is supervised, and a fork keeps its parent's method",
            param="grader",
            hint="leave `grader` out, or create a new job with method.reinforcement",
        )
    if not changed:
        return {}
    return {
        "hyperparameters": {**parent.hyperparameters, **changed},
        "method": parent.method and {"type": parent.method["type"]},
    }


def body_of(job: JobRow) -> dict[str, Any]:  # Any: JSON
    """Return the body of a request that creates `job` again, with the same seed."""
    return {
        "model": job.model,
        "training_file": job.training_file,
        "validation_file": job.validation_file,
        "suffix": job.suffix,
        "seed": job.seed,
        "metadata": job.labels,
        "hyperparameters": None if _reinforcement(job) else job.hyperparameters,
        "method": job.method,
        "recipe": _recipe_of(job).model_dump(mode="json"),
        "scheduling": stored_job.scheduling(job).model_dump(mode="json"),
    }


def _with_priority(body: JobCreate, requester: Requester) -> JobCreate:
    """Return the request. A priority above 0 becomes 0 if the caller may not raise the priority."""
    scheduling = body.scheduling
    if scheduling is None or scheduling.priority <= 0 or requester.may_raise_priority:
        return body
    lowered = scheduling.model_copy(update={"priority": 0})
    return body.model_copy(update={"scheduling": lowered})


def _recipe_of(job: JobRow) -> Recipe:
    try:
        return stored_job.recipe(job)
    except Unreadable as error:
        raise BadRequest(
            ErrorCode.UNREADABLE,
            f"job {job.id!r} cannot be repeated: {error}",
            hint="POST /v1/fine_tuning/jobs creates a new job",
        ) from error


def _validated(body: dict[str, Any]) -> JobCreate:  # Any: JSON
    try:
        return JobCreate.model_validate(body)
    except ValidationError as error:
        refused = validation_body([dict(item) for item in error.errors(include_url=False)])
        code = ErrorCode(refused.code or ErrorCode.INVALID_REQUEST)
        raise BadRequest(code, refused.message, param=refused.param, hint=refused.hint) from error


def _origin_of_retry(session: Session, old: JobRow) -> Origin:
    """Return the origin of a retry: the job's newest resume point, or else the resume point that
    the job started from."""
    prefix = f"retry of {old.id}"
    if steps := _resume_steps(session, old.id):
        text = f"{prefix}, from step {steps[0]}"
        return Origin(description=text, job_id=old.id, step=steps[0], retry_of=old.id)
    if old.forked_from is None or old.forked_step is None:
        return Origin(description=f"{prefix}, from step 0", retry_of=old.id)
    jobs.lock(session, old.forked_from)  # protects the resume points until the retry is inserted
    if old.forked_step not in _resume_steps(session, old.forked_from):
        raise BadRequest(
            ErrorCode.NOT_RETRYABLE,
            f"job {old.id!r} started from step {old.forked_step} of {old.forked_from}, whose "
            "resume point has been deleted",
            hint=f"POST /v1/fine_tuning/jobs/{old.forked_from}/fork starts from another step",
        )
    text = f"{prefix}, from step {old.forked_step} of {old.forked_from}"
    return Origin(description=text, job_id=old.forked_from, step=old.forked_step, retry_of=old.id)
