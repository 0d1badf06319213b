"""`tunesmith jobs ...`: create, watch and read fine-tuning jobs. Control is in control.py."""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

import typer

from tunesmith._http.errors import JobNotSucceededError
from tunesmith._sdk.job import Job
from tunesmith_schema import TERMINAL, Event

from .grader import GraderOption, read_grader
from .output import (
    AsJson,
    Limit,
    age,
    moment,
    show_fields,
    show_json,
    show_page_json,
    show_table,
    wire_json,
)
from .recipe import RecipeFile, RecipePairs, build_recipe
from .report import show_report
from .session import connected

app = typer.Typer(help="Fine-tuning jobs.", no_args_is_help=True)


class JobMethod(StrEnum):
    """The kinds of training that `create` knows."""

    SUPERVISED = "supervised"
    REINFORCEMENT = "reinforcement"


JobId = Annotated[str, typer.Argument(metavar="ID", help="ftjob-...")]


@app.command("create")
def create(
    ctx: typer.Context,
    model: Annotated[str, typer.Option(help="What to train: see `tunesmith models list`.")],
    data: Annotated[str, typer.Option(help="A local file or a file id.")],
    validation: Annotated[str | None, typer.Option(help="A local file or a file id.")] = None,
    suffix: Annotated[str | None, typer.Option(help="Goes into the tuned model's name.")] = None,
    seed: Annotated[int | None, typer.Option(help="Drawn when not given.")] = None,
    recipe: RecipePairs = None,
    recipe_file: RecipeFile = None,
    method: Annotated[
        JobMethod | None, typer.Option(help="Reinforcement needs --grader, which implies it.")
    ] = None,
    grader: GraderOption = None,
    n_epochs: Annotated[int | None, typer.Option(help="Passes over the data.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Rows in one step; prompts, in reinforcement.")
    ] = None,
    learning_rate_multiplier: Annotated[
        float | None, typer.Option(help="Factor on the automatic learning rate.")
    ] = None,
    eval_samples: Annotated[
        int | None, typer.Option(help="Completions for each prompt of the validation file.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it to its end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a job; local files are uploaded first."""
    hyperparameters = {
        "n_epochs": n_epochs,
        "batch_size": batch_size,
        "learning_rate_multiplier": learning_rate_multiplier,
        "eval_samples": eval_samples,
    }
    given = {name: value for name, value in hyperparameters.items() if value is not None}
    if method is JobMethod.REINFORCEMENT and grader is None:
        raise typer.BadParameter("reinforcement needs --grader", param_hint="--method")
    if method is JobMethod.SUPERVISED and grader is not None:
        raise typer.BadParameter("a supervised job has no grader", param_hint="--grader")
    with connected(ctx) as client:
        job = client.fine_tuning.jobs.create(
            model=model,
            training_file=data,
            validation_file=validation,
            suffix=suffix,
            seed=seed,
            hyperparameters=given or None,
            grader=read_grader(grader),
            recipe=build_recipe(recipe or [], recipe_file),
        )
        if watch:
            typer.echo(f"created {job.id}", err=True)
            _watch(job, as_json)
        else:
            _show(job, as_json)


@app.command("list")
def list_jobs(ctx: typer.Context, limit: Limit = 20, as_json: AsJson = False) -> None:
    """The newest jobs."""
    with connected(ctx) as client:
        page = client.fine_tuning.jobs.list(limit=limit)
        if as_json:
            show_page_json(page.data, page.has_more)
            return
        show_table(
            ("ID", "STATE", "STEP", "AGE", "MODEL"),
            ((job.id, job.state, _step(job), age(job.created_at), job.model) for job in page.data),
        )


@app.command("show")
def show(ctx: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """One job."""
    with connected(ctx) as client:
        _show(client.fine_tuning.jobs.retrieve(job_id), as_json)


@app.command("watch")
def watch(ctx: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """Follow a job to its end, with a live bar."""
    with connected(ctx) as client:
        _watch(client.fine_tuning.jobs.retrieve(job_id), as_json)


@app.command("logs")
def logs(
    ctx: typer.Context,
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the job is over.")] = False,
    as_json: AsJson = False,
) -> None:
    """A job's events, oldest first, one a line."""
    with connected(ctx) as client:
        jobs = client.fine_tuning.jobs
        events: Iterable[Event] = (
            jobs.stream(job_id) if follow else jobs.list_events(job_id, order="asc", limit=1000)
        )
        for event in events:
            typer.echo(wire_json(event) if as_json else _line(event))


@app.command("report")
def report(
    ctx: typer.Context,
    job_id: JobId,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Which attempt; the newest when not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Where a job's time and memory went, what bounds it, and what would help."""
    with connected(ctx) as client:
        found = client.fine_tuning.jobs.report(job_id, attempt=attempt)
        if as_json:
            show_json(found)
        else:
            show_report(found)


def _watch(job: Job, as_json: bool) -> None:
    try:
        job.wait(progress=True)
    except JobNotSucceededError:
        if as_json:
            show_json(job)
        raise
    except KeyboardInterrupt:
        typer.echo(f"{job.id} goes on; look again with: tunesmith jobs watch {job.id}", err=True)
        raise typer.Exit(130) from None
    _show(job, as_json)


def _show(job: Job, as_json: bool) -> None:
    if as_json:
        show_json(job)
        return
    error = job.error
    show_fields(
        [
            ("id", job.id),
            ("state", f"{job.state} ({job.phase})" if job.phase else job.state),
            ("asked to", _asked(job)),
            ("model", job.model),
            ("tuned model", job.fine_tuned_model),
            ("adapter", job.adapter_id),
            ("method", job.method and job.method.get("type")),
            ("step", _step(job)),
            ("trained tokens", job.trained_tokens),
            ("training file", job.training_file),
            ("validation file", job.validation_file),
            ("seed", job.seed),
            ("attempt", job.attempt or None),
            ("starts from", job.forked_from and f"step {job.forked_step} of {job.forked_from}"),
            ("retry of", job.retry_of),
            ("created", moment(job.created_at)),
            ("finished", moment(job.finished_at)),
            ("error", error and error.message),
            ("hint", error and error.hint),
        ]
    )


def _asked(job: Job) -> str | None:
    if job.state in TERMINAL:
        return None
    return "cancel" if job.cancel_requested else "stop" if job.stop_requested else None


def _step(job: Job) -> str:
    if job.total_steps is None:
        return str(job.step or "")
    return f"{job.step}/{job.total_steps}"


def _line(event: Event) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(event.created_at))
    return f"{at} {event.level:<5} {event.message}"
