"""`tunesmith jobs`: create, list, show and watch jobs. control.py has the commands that change a
job."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any

import typer

from tunesmith._http.errors import NotFoundError
from tunesmith._http.hints import in_commands, in_python
from tunesmith._sdk.client import Client
from tunesmith._sdk.grader_argument import with_grader
from tunesmith._sdk.job import Job, JobNotSucceededError
from tunesmith_schema import Event, EventKind, JobReport, JobState

from .evaluation import show_evaluation
from .grader import GraderOption, read_grader
from .job_view import show_job, show_jobs, show_summary
from .metadata import MetadataPairs, build_metadata
from .output import AsJson, Limit, show_json, show_page_json, show_table, wire_json
from .recipe import RecipeFile, RecipePairs, build_recipe
from .report import show_report
from .session import connected
from .times import parse_time

app = typer.Typer(help="Fine-tuning jobs.", no_args_is_help=True)


class JobMethod(StrEnum):
    """Training methods of `create`."""

    SUPERVISED = "supervised"
    REINFORCEMENT = "reinforcement"


class EventLevel(StrEnum):
    """Levels of events."""

    INFO = "info"
    WARN = "warn"
    ERROR = "error"


SHORT_PHASE_SECONDS = 0.1
"""The log shows phases that took at least this number of seconds."""

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
    priority: Annotated[
        int, typer.Option(min=-100, max=100, help="Priority in the project; higher starts earlier.")
    ] = 0,
    interactive: Annotated[
        bool,
        typer.Option(
            "--interactive", help="Start before other jobs; meant for jobs of up to 10 minutes."
        ),
    ] = False,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Label that the worker must have. Repeatable."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the job until it ends.")] = False,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Create nothing; list all problems.")
    ] = False,
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
        raise typer.BadParameter("supervised training uses no grader", param_hint="--grader")
    arguments: dict[str, Any] = {  # Any: JSON
        "model": model,
        "training_file": data,
        "validation_file": validation,
        "suffix": suffix,
        "seed": seed,
        "metadata": build_metadata(metadata or []),
        "hyperparameters": hyperparameters or None,
        "recipe": build_recipe(recipe or [], recipe_file),
        "scheduling": _scheduling(priority, interactive, label or []),
    }
    with connected(ctx) as client:
        if validate_only:
            body = with_grader({**arguments, "method": None}, read_grader(grader))
            _validate(client, body, as_json)
            return
        job = client.fine_tuning.jobs.create(**arguments, grader=read_grader(grader))
        if watch:
            typer.echo(f"created {job.id}", err=True)
            _watch(job, as_json)
        elif as_json:
            show_json(job)
        else:
            show_job(job)


@app.command("recipe-fields")
def recipe_fields(
    ctx: typer.Context,
    part: Annotated[str, typer.Argument(help="Only fields with this text in their names.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the fields of the recipe, for --recipe: allowed values, default and meaning."""
    with connected(ctx) as client:
        fields = [field for field in client.fine_tuning.recipe_fields() if part in field.id]
    if as_json:
        show_page_json(fields, False)
        return
    show_table(
        ("FIELD", "VALUES", "DEFAULT", "MEANING"),
        (
            (
                field.id.removeprefix("recipe."),
                field.values.replace("`", ""),
                json.dumps(field.default),
                field.description.replace("`", ""),
            )
            for field in fields
        ),
    )


def _validate(client: Client, body: dict[str, Any], as_json: bool) -> None:  # Any: JSON
    result = client.fine_tuning.jobs.validate({k: v for k, v in body.items() if v is not None})
    if as_json:
        show_json(result)
    elif result.valid:
        typer.echo("the server would create this job")
    for warning in [] if as_json else result.warnings:
        typer.echo(f"warning: {warning.message}; {warning.hint}", err=True)
    for problem in [] if as_json else result.problems:
        typer.echo(f"error: {problem.message}", err=True)
        if problem.hint:
            typer.echo(f"hint: {in_commands(in_python(problem.hint))}", err=True)
    if not result.valid:
        raise typer.Exit(1)


@app.command("list")
def list_jobs(
    ctx: typer.Context,
    limit: Limit = 20,
    state: Annotated[
        list[JobState] | None, typer.Option(help="Only jobs in this state. Repeatable.")
    ] = None,
    method: Annotated[JobMethod | None, typer.Option(help="Only this training method.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this base or tuned model.")] = None,
    text: Annotated[
        str | None, typer.Option(help="Part of the id, the name, the suffix or a model's name.")
    ] = None,
    owner: Annotated[
        str | None, typer.Option(help="Created by the API key with this name or id.")
    ] = None,
    forked_from: Annotated[str | None, typer.Option(help="Only forks of this job.")] = None,
    retry_of: Annotated[str | None, typer.Option(help="Only retries of this job.")] = None,
    pinned: Annotated[
        bool | None,
        typer.Option("--pinned/--not-pinned", help="Only pinned jobs, or only jobs without a pin."),
    ] = None,
    metadata: MetadataPairs = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Jobs created after this time (30m, 12h, 7d, 2026-01-31)."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Jobs created before this time; same forms as --since."),
    ] = None,
    finished_since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Jobs that ended after this time; same forms as --since."
        ),
    ] = None,
    warned_since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Jobs with a warning or an error after this time; same forms as --since.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    with connected(ctx) as client:
        page = client.fine_tuning.jobs.list(
            limit=limit,
            state=state,
            method=method,
            model=model,
            text=text,
            owner=owner,
            forked_from=forked_from,
            retry_of=retry_of,
            pinned=pinned,
            metadata=build_metadata(metadata or []),
            created_after=parse_time(since, "--since"),
            created_before=parse_time(until, "--until"),
            finished_after=parse_time(finished_since, "--finished-since"),
            warned_after=parse_time(warned_since, "--warned-since"),
        )
    if as_json:
        show_page_json(page.data, page.has_more)
    else:
        show_jobs(page.data)


@app.command("show")
def show(ctx: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """Show a job: state, health, settings, results and the next commands."""
    with connected(ctx) as client:
        job = client.fine_tuning.jobs.retrieve(job_id)
        if as_json:
            show_json(job)
        else:
            show_job(job, _report(client, job))


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
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print phases of less than 0.1 s too.")
    ] = False,
    kind: Annotated[
        list[EventKind] | None, typer.Option(help="Only events of this kind. Repeatable.")
    ] = None,
    level: Annotated[
        list[EventLevel] | None, typer.Option(help="Only events of this level. Repeatable.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="Only events with this text.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the events of a job, oldest first, one per line. Filters select stored events, so
    filters cannot be combined with --follow."""
    if follow and (kind or level or text):
        raise typer.BadParameter(
            "--follow prints all events: leave out --kind, --level and --text",
            param_hint="--follow",
        )
    with connected(ctx) as client:
        jobs = client.fine_tuning.jobs
        events: Iterable[Event] = (
            jobs.stream(job_id)
            if follow
            else jobs.list_events(job_id, order="asc", limit=1000, kind=kind, level=level, q=text)
        )
        for event in events:
            if _is_short_phase(event) and not (verbose or as_json):
                continue
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
    """Show a job's time and memory by phase, the job's bottleneck, and advice."""
    with connected(ctx) as client:
        job_report = client.fine_tuning.jobs.report(job_id, attempt=attempt)
        if as_json:
            show_json(job_report)
        else:
            show_report(job_report)


@app.command("evaluation")
def evaluation(ctx: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """Show the evaluation of a job's result: scores of the base model and the tuned model, with
    answers."""
    with connected(ctx) as client:
        found = client.fine_tuning.jobs.evaluation(job_id)
        if as_json:
            show_json(found)
        else:
            show_evaluation(found)


def _scheduling(priority: int, interactive: bool, labels: list[str]) -> dict[str, Any] | None:
    pairs = dict(build_metadata(labels, "--label") or {})
    if not (priority or interactive or pairs):
        return None
    return {"priority": priority, "interactive": interactive, "worker_labels": pairs}


def _watch(job: Job, as_json: bool) -> None:
    try:
        job.wait(progress=True)
    except JobNotSucceededError:
        _show_end(job, as_json)
        raise
    except KeyboardInterrupt:
        typer.echo(f"{job.id} continues; watch again with: tunesmith jobs watch {job.id}", err=True)
        raise typer.Exit(130) from None
    _show_end(job, as_json)


def _show_end(job: Job, as_json: bool) -> None:
    if as_json:
        show_json(job)
    else:
        show_summary(job)


def _report(client: Client, job: Job) -> JobReport | None:
    try:
        return client.fine_tuning.jobs.report(job.id) if job.attempt else None
    except NotFoundError:
        return None


def _is_short_phase(event: Event) -> bool:
    seconds = event.data.get("seconds")
    return (
        event.kind is EventKind.PHASE
        and isinstance(seconds, int | float)
        and seconds < SHORT_PHASE_SECONDS
    )


def _line(event: Event) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(event.created_at))
    return f"{clock} {event.level:<5} {event.message}"
