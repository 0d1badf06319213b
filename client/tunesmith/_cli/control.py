"""`tunesmith jobs cancel|pause|resume|stop|fork|retry`: one line about what has come of it."""

from __future__ import annotations

from typing import Annotated

import typer

from tunesmith._sdk.job import Job
from tunesmith_schema import JobState

from .grader import GraderOption, read_grader
from .jobs import JobId
from .output import AsJson, show_json
from .recipe import RecipeFile, RecipePairs, build_recipe
from .session import connected


def cancel(ctx: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """End a job and keep nothing but its checkpoints."""
    with connected(ctx) as client:
        job = client.fine_tuning.jobs.cancel(job_id)
    done = job.state is JobState.CANCELLED
    _say(
        job,
        f"cancelled {job.id}"
        if done
        else f"asked {job.id} to end and keep nothing; it is still {job.state}",
        as_json,
    )


def pause(ctx: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """Give a job's device back; `resume` goes on where it was."""
    with connected(ctx) as client:
        job = client.fine_tuning.jobs.pause(job_id)
    _say(
        job,
        f"paused {job.id}"
        if job.state is JobState.PAUSED
        else f"asked {job.id} to pause; it saves what it needs to go on, then it is paused",
        as_json,
    )


def resume(ctx: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """Go on with a paused job."""
    with connected(ctx) as client:
        job = client.fine_tuning.jobs.resume(job_id)
    waits = job.state is JobState.QUEUED
    _say(job, f"{job.id} is queued and goes on" if waits else f"{job.id} is {job.state}", as_json)


def stop(ctx: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """End a job at its next step and keep what it has made."""
    with connected(ctx) as client:
        job = client.fine_tuning.jobs.stop(job_id)
    _say(
        job,
        f"asked {job.id} to stop: it ends at its next step and keeps what it has made",
        as_json,
    )


def fork(
    ctx: typer.Context,
    job_id: JobId,
    step: Annotated[
        int | None, typer.Option(min=1, help="Where to start; the newest resume point else.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="ID", help="ftckpt-..., in place of --step.")
    ] = None,
    recipe: RecipePairs = None,
    recipe_file: RecipeFile = None,
    grader: GraderOption = None,
    suffix: Annotated[str | None, typer.Option(help="Goes into the tuned model's name.")] = None,
    seed: Annotated[int | None, typer.Option(help="The job's, when not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Start another job where this one was, with a changed recipe."""
    with connected(ctx) as client:
        job = client.fine_tuning.jobs.fork(
            job_id,
            step=step,
            checkpoint=checkpoint,
            recipe=build_recipe(recipe or [], recipe_file),
            grader=read_grader(grader),
            suffix=suffix,
            seed=seed,
        )
    _say(job, f"{job.id} goes on from step {job.forked_step} of {job_id}", as_json)


def retry(ctx: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """Take up a job that failed or was cancelled, as a new one."""
    with connected(ctx) as client:
        job = client.fine_tuning.jobs.retry(job_id)
    where = (
        "from the beginning"
        if job.forked_from is None
        else f"from step {job.forked_step}"
        if job.forked_from == job_id
        else f"from step {job.forked_step} of {job.forked_from}"
    )
    _say(job, f"{job.id} takes up {job_id} {where}", as_json)


def add_to(app: typer.Typer) -> None:
    for verb in (cancel, pause, resume, stop, fork, retry):
        app.command(verb.__name__)(verb)


def _say(job: Job, line: str, as_json: bool) -> None:
    if as_json:
        show_json(job)
    else:
        typer.echo(line)
