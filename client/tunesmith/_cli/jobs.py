"""`tunesmith jobs`: create, list, show and watch jobs. control.py has the commands that change a
job."""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

import typer

from tunesmith._http.hints import in_commands, in_python
from tunesmith._sdk.job import Job, JobNotSucceededError
from tunesmith_schema import TERMINAL, Event

from .grader import GraderOption, read_grader
from .metadata import MetadataPairs, build_metadata
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
    """Training methods of `create`."""

    SUPERVISED = "supervised"
    REINFORCEMENT = "reinforcement"


JobId = Annotated[str, typer.Argument(metavar="ID", help="ftjob-...")]


@app.command("create")
def create(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Option(help="Base model: a name from `tunesmith models list`, or a Hugging Face id."),
    ],
    data: Annotated[str, typer.Option(help="Training data: a local file or a file id.")],
    validation: Annotated[
        str | None, typer.Option(help="Validation data: a local file or a file id.")
    ] = None,
    suffix: Annotated[str | None, typer.Option(help="Part of the tuned model's name.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed (default: random).")] = None,
    recipe: RecipePairs = None,
    recipe_file: RecipeFile = None,
    method: Annotated[
        JobMethod | None, typer.Option(help="Training method; --grader selects reinforcement.")
    ] = None,
    grader: GraderOption = None,
    n_epochs: Annotated[int | None, typer.Option(help="Epochs: passes over the data.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Rows per step, or prompts per step with reinforcement.")
    ] = None,
    learning_rate_multiplier: Annotated[
        float | None, typer.Option(help="Factor applied to the automatic learning rate.")
    ] = None,
    eval_samples: Annotated[
        int | None, typer.Option(help="Completions per prompt of the validation file.")
    ] = None,
    metadata: MetadataPairs = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the job until it ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create a job. Local files that the server does not have yet are uploaded first."""
    options = {
        "n_epochs": n_epochs,
        "batch_size": batch_size,
        "learning_rate_multiplier": learning_rate_multiplier,
        "eval_samples": eval_samples,
    }
    hyperparameters = {name: value for name, value in options.items() if value is not None}
    if method is JobMethod.REINFORCEMENT and grader is None:
        raise typer.BadParameter("reinforcement needs --grader", param_hint="--method")
    if method is JobMethod.SUPERVISED and grader is not None:
        raise typer.BadParameter("supervised training takes no grader", param_hint="--grader")
    with connected(ctx) as client:
        job = client.fine_tuning.jobs.create(
            model=model,
            training_file=data,
            validation_file=validation,
            suffix=suffix,
            seed=seed,
            metadata=build_metadata(metadata or []),
            hyperparameters=hyperparameters or None,
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
    """List jobs, newest first."""
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
    """Show a job."""
    with connected(ctx) as client:
        _show(client.fine_tuning.jobs.retrieve(job_id), as_json)


@app.command("watch")
def watch(ctx: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """Follow a job until it ends, with a progress bar."""
    with connected(ctx) as client:
        _watch(client.fine_tuning.jobs.retrieve(job_id), as_json)


@app.command("logs")
def logs(
    ctx: typer.Context,
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", help="Follow until the job ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the events of a job, oldest first, one per line."""
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
        int | None, typer.Option(min=1, help="Number of the attempt (default: the newest).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show time and memory of a job by phase, its bottleneck, and advice."""
    with connected(ctx) as client:
        job_report = client.fine_tuning.jobs.report(job_id, attempt=attempt)
        if as_json:
            show_json(job_report)
        else:
            show_report(job_report)


def _watch(job: Job, as_json: bool) -> None:
    try:
        job.wait(progress=True)
    except JobNotSucceededError:
        if as_json:
            show_json(job)
        raise
    except KeyboardInterrupt:
        typer.echo(f"{job.id} continues; watch again with: tunesmith jobs watch {job.id}", err=True)
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
            ("requested", _requested(job)),
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
            ("metadata", ", ".join(f"{k}={v}" for k, v in (job.metadata or {}).items())),
            ("created", moment(job.created_at)),
            ("finished", moment(job.finished_at)),
            ("error", error and error.message),
            ("hint", error and error.hint and in_commands(in_python(error.hint))),
        ]
    )


def _requested(job: Job) -> str | None:
    if job.state in TERMINAL:
        return None
    return "cancel" if job.cancel_requested else "stop" if job.stop_requested else None


def _step(job: Job) -> str:
    if job.total_steps is None:
        return str(job.step or "")
    return f"{job.step}/{job.total_steps}"


def _line(event: Event) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(event.created_at))
    return f"{clock} {event.level:<5} {event.message}"
