"""The commands `tunesmith jobs cancel|delete|pause|resume|stop|fork|retry`. Each command prints one
line."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tunesmith._sdk.job import Job
from tunesmith_schema import JobState

from .grader import read_grader
from .jobs import JobId
from .output import AsJson, show_json
from .recipe import RecipeFile, RecipePairs, build_recipe
from .session import connected


def cancel(
    ctx: typer.Context,
    job_id: JobId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """End a job and keep only its checkpoints. On a terminal, ask for confirmation."""
    if not yes and _stdin_is_terminal():
        question = f"Cancel {job_id}? Only its checkpoints are kept."
        if not typer.confirm(question, err=True):
            typer.echo(f"{job_id} was not cancelled", err=True)
            raise typer.Exit(1)
    with connected(ctx) as client:
        job = client.fine_tuning.jobs.cancel(job_id)
    _show(
        job,
        f"cancelled {job.id}"
        if job.state is JobState.CANCELLED
        else f"cancellation of {job.id} requested; the job is still {job.state}",
        as_json,
    )


def delete(
    ctx: typer.Context,
    job_id: JobId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete an ended job with its tuned models, checkpoints and events. The job's data files are
    kept."""
    if not yes:
        confirm_deletion(job_id, "with its tuned models and checkpoints")
    with connected(ctx) as client:
        deleted = client.fine_tuning.jobs.delete(job_id)
    if as_json:
        show_json(deleted)
    else:
        typer.echo(f"deleted {deleted.id}")


def pause(ctx: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """Pause a job: save a resume point and free the GPU. `resume` continues the job."""
    with connected(ctx) as client:
        job = client.fine_tuning.jobs.pause(job_id)
    _show(
        job,
        f"paused {job.id}"
        if job.state is JobState.PAUSED
        else f"pause of {job.id} requested; the job saves a resume point first",
        as_json,
    )


def resume(ctx: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """Continue a paused job."""
    with connected(ctx) as client:
        job = client.fine_tuning.jobs.resume(job_id)
    queued = job.state is JobState.QUEUED
    _show(job, f"queued {job.id} again" if queued else f"{job.id} is {job.state}", as_json)


def stop(ctx: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """End a job at its next step and keep its result."""
    with connected(ctx) as client:
        job = client.fine_tuning.jobs.stop(job_id)
    _show(
        job,
        f"stop of {job.id} requested; the job ends at its next step and keeps its result",
        as_json,
    )


def fork(
    ctx: typer.Context,
    job_id: JobId,
    step: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Use the newest resume point at or before this step (default: the newest of all).",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Use the step of this checkpoint (ftckpt-...) instead of --step."
        ),
    ] = None,
    recipe: RecipePairs = None,
    recipe_file: RecipeFile = None,
    grader: Annotated[
        str | None, typer.Option(metavar="FILE|JSON", help="Grader that replaces the job's grader.")
    ] = None,
    suffix: Annotated[str | None, typer.Option(help="Part of the tuned model's name.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed (default: the job's seed).")] = None,
    as_json: AsJson = False,
) -> None:
    """Start a new job with a changed recipe from a resume point of another job."""
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
    _show(job, f"created {job.id} from step {job.forked_step} of {job_id}", as_json)


def retry(ctx: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """Repeat a failed or cancelled job as a new job from its newest resume point."""
    with connected(ctx) as client:
        job = client.fine_tuning.jobs.retry(job_id)
    start = (
        "from the beginning"
        if job.forked_from is None
        else f"from step {job.forked_step}"
        if job.forked_from == job_id
        else f"from step {job.forked_step} of {job.forked_from}"
    )
    _show(job, f"created {job.id}, a retry of {job_id} {start}", as_json)


def add_to(app: typer.Typer) -> None:
    for command in (cancel, pause, resume, stop, fork, retry, delete):
        app.command(command.__name__)(command)


def confirm_deletion(name: str, details: str) -> None:
    """Ask in a terminal whether to delete an object; exit if the user declines."""
    if _stdin_is_terminal() and not typer.confirm(f"Delete {name}, {details}?", err=True):
        typer.echo(f"{name} was not deleted", err=True)
        raise typer.Exit(1)


def _stdin_is_terminal() -> bool:
    return sys.stdin.isatty()


def _show(job: Job, line: str, as_json: bool) -> None:
    if as_json:
        show_json(job)
    else:
        typer.echo(line)
