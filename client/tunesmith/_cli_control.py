"""`tunesmith jobs cancel|pause|resume|stop`: one line about what has come of it."""

from __future__ import annotations

import typer

from tunesmith_schema import JobState

from ._cli_jobs import JobId
from ._cli_output import AsJson, show_json
from ._cli_session import connected
from ._job import Job


def cancel(ctx: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """End a job and keep nothing but its checkpoints."""
    with connected(ctx) as client:
        job = client.fine_tuning.jobs.cancel(job_id)
    done = job.state is JobState.CANCELLED
    _say(
        job,
        f"cancelled {job.id}" if done else f"asked {job.id} to stop; it is still {job.state}",
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


def add_to(app: typer.Typer) -> None:
    for verb in (cancel, pause, resume, stop):
        app.command(verb.__name__)(verb)


def _say(job: Job, line: str, as_json: bool) -> None:
    if as_json:
        show_json(job)
    else:
        typer.echo(line)
