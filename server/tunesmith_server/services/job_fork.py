"""Jobs that begin where another one was: a fork with a changed recipe, and a retry.

Both are created like any other job. Rows of resume points are written by resume_points.py; here
they are only read.
"""

from __future__ import annotations

import hashlib
from typing import Any

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, Job, JobCreate, JobFork, JobState, Recipe
from tunesmith_schema.forks import first_fixed_change, merged
from tunesmith_schema.renames import current_names
from tunesmith_server.core.errors import BadRequest, validation_body
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import CheckpointRow, JobRow, ResumePointRow

from . import events, job_create, jobs
from .job_create import Caller, Origin


def fork(
    session: Session, settings: Settings, wake_ups: WakeUps, job_id: str, body: JobFork, by: Caller
) -> tuple[Job, bool]:
    """A new job from a resume point of `job_id`, or the one that this request already made; also
    whether it is that one."""
    digest = _digest("fork", job_id, body.model_dump_json())
    if earlier := job_create.made_before(session, by, digest):
        return jobs.to_wire(earlier), True
    parent = jobs.lock(session, job_id)  # its resume points stay until the fork is there
    asked = _asked_step(session, parent, body)
    step = _resume_step(session, parent, asked)
    origin = Origin(words=f"forked from {job_id} at step {step}", job_id=job_id, step=step)
    changed = _changed(parent, body, step)
    job = job_create.insert(session, settings, wake_ups, changed, by, digest, origin)
    if asked is not None and asked != step:
        what = f"step {asked} has no resume point: the fork starts from step {step} instead"
        events.add(session, job, what, level="warn", data={"step": step, "asked": asked})
    return jobs.to_wire(job), False


def retry(
    session: Session, settings: Settings, wake_ups: WakeUps, job_id: str, owner: str
) -> tuple[Job, bool]:
    """A new job with the same body, which goes on from the newest resume point; a second call finds
    the first one's. Also whether it was found."""
    old = jobs.lock(session, job_id)
    if known := session.scalar(select(JobRow).where(JobRow.retry_of == job_id)):
        return jobs.to_wire(known), True
    if old.state not in (JobState.FAILED, JobState.CANCELLED):
        ended = old.state == JobState.SUCCEEDED
        raise BadRequest(
            ErrorCode.NOT_RETRYABLE,
            f"job {job_id!r} {'has succeeded' if ended else f'is {old.state}'}: only one that "
            "failed or was cancelled can be retried",
            hint="POST /v1/fine_tuning/jobs trains anew"
            if ended
            else f"POST /v1/fine_tuning/jobs/{job_id}/fork goes on from one of its resume points",
        )
    body, origin = _validated(_body_of(old)), _origin_of_retry(session, old)
    by, digest = Caller(owner=owner), _digest("retry", job_id)
    job = job_create.insert(session, settings, wake_ups, body, by, digest, origin)
    return jobs.to_wire(job), False


def has_changed(session: Session, job: JobRow) -> bool:
    """Whether a job differs, in what a resume point is made for, from the one it starts from."""
    origin = session.get(JobRow, job.forked_from) if job.forked_from else None
    shaping = ("model", "training_file", "validation_file", "seed", "recipe", "hyperparameters")
    return origin is not None and (
        any(current_names(getattr(origin, n)) != current_names(getattr(job, n)) for n in shaping)
        or _reinforcement(origin) != _reinforcement(job)
    )


def _reinforcement(job: JobRow) -> dict[str, Any] | None:  # Any: JSON
    """Its grader and hyperparameters; None: it is another kind of job."""
    return (job.method or {}).get("reinforcement")


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _steps(session: Session, job_id: str) -> list[int]:
    """Of its resume points, newest first."""
    points = select(ResumePointRow.step).where(ResumePointRow.job_id == job_id)
    return list(session.scalars(points.order_by(ResumePointRow.step.desc())))


def _asked_step(session: Session, parent: JobRow, body: JobFork) -> int | None:
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


def _resume_step(session: Session, parent: JobRow, asked: int | None) -> int:
    """The newest step at or before the one asked for that can be gone on from."""
    steps = _steps(session, parent.id)
    if not steps:
        raise BadRequest(
            ErrorCode.NOT_FORKABLE,
            f"job {parent.id!r} has no resume point to fork from",
            hint="a job stores them while it trains; once it has succeeded it keeps those that its "
            "recipe.keep_every named",
        )
    there = ", ".join(str(step) for step in reversed(steps))
    reached = max(steps[0], parent.step or 0)
    if asked is not None and not steps[-1] <= asked <= reached:
        raise BadRequest(
            ErrorCode.NOT_FORKABLE,
            f"step: job {parent.id!r} cannot be forked at step {asked}: it has come to step "
            f"{reached}, and its first resume point is at step {steps[-1]}",
            param="step",
            hint=f"its resume points: {there}",
        )
    return steps[0] if asked is None else next(step for step in steps if step <= asked)


def _changed(parent: JobRow, body: JobFork, step: int) -> JobCreate:
    old = Recipe.model_validate(current_names(parent.recipe))
    changes: dict[str, Any] = {
        name: value
        for name in ("suffix", "seed", "metadata")
        if (value := getattr(body, name)) is not None
    }
    changes |= _changed_method(parent, body)
    changed = _validated(_body_of(parent) | changes | {"recipe": merged(old, body.recipe)})
    new = changed.recipe
    if differs := first_fixed_change(old, new):
        name, was, is_now = differs
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"recipe.{name}: a fork goes on with what training has shaped, which {is_now!r} does "
            f"not fit (it was {was!r})",
            param=f"recipe.{name}",
            hint="leave it out, or create a new job",
        )
    if new.max_steps != "auto" and new.max_steps <= step:
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"recipe.max_steps: {new.max_steps} leaves nothing to do: the fork starts at step "
            f"{step} and counts on from there",
            param="recipe.max_steps",
            hint="give more steps, or fork from an earlier one",
        )
    return changed


def _changed_method(parent: JobRow, body: JobFork) -> dict[str, Any]:  # Any: JSON
    """Of the body of the parent's create."""
    given = body.hyperparameters
    knobs = given.model_dump(mode="json", exclude_unset=True) if given else {}
    if (old := _reinforcement(parent)) is not None:
        new = {**old, "hyperparameters": {**old["hyperparameters"], **knobs}}
        if body.grader is not None:
            new["grader"] = body.grader.model_dump(mode="json")
        return {"method": {"type": "reinforcement", "reinforcement": new}}
    if body.grader is not None:
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"grader: job {parent.id!r} is supervised, and a fork trains as its parent does",
            param="grader",
            hint="leave it out, or create a new job with method.reinforcement",
        )
    if not knobs:
        return {}
    return {
        "hyperparameters": {**parent.hyperparameters, **knobs},
        "method": parent.method and {"type": parent.method["type"]},
    }


def _body_of(job: JobRow) -> dict[str, Any]:  # Any: JSON
    """What would create it again, seed included."""
    return {
        "model": job.model,
        "training_file": job.training_file,
        "validation_file": job.validation_file,
        "suffix": job.suffix,
        "seed": job.seed,
        "metadata": job.labels,
        "hyperparameters": None if _reinforcement(job) else job.hyperparameters,
        "method": job.method,
        "recipe": current_names(job.recipe),
    }


def _validated(body: dict[str, Any]) -> JobCreate:  # Any: JSON
    try:
        return JobCreate.model_validate(body)
    except ValidationError as error:
        told = validation_body([dict(one) for one in error.errors(include_url=False)])
        code = ErrorCode(told.code or ErrorCode.INVALID_REQUEST)
        raise BadRequest(code, told.message, param=told.param, hint=told.hint) from error


def _origin_of_retry(session: Session, old: JobRow) -> Origin:
    """The newest point that the old job had, be it one that it had itself started from."""
    again = f"retry of {old.id}"
    if steps := _steps(session, old.id):
        words = f"{again}, from step {steps[0]}"
        return Origin(words=words, job_id=old.id, step=steps[0], retry_of=old.id)
    if old.forked_from is None or old.forked_step is None:
        return Origin(words=f"{again}, from the beginning", retry_of=old.id)
    jobs.lock(session, old.forked_from)  # its resume points stay until the retry is there
    if old.forked_step not in _steps(session, old.forked_from):
        raise BadRequest(
            ErrorCode.NOT_RETRYABLE,
            f"job {old.id!r} started from step {old.forked_step} of {old.forked_from}, whose "
            "resume point is no longer there",
            hint=f"POST /v1/fine_tuning/jobs/{old.forked_from}/fork starts from another one",
        )
    words = f"{again}, from step {old.forked_step} of {old.forked_from}"
    return Origin(words=words, job_id=old.forked_from, step=old.forked_step, retry_of=old.id)
