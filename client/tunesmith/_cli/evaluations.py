"""`tunesmith eval`: evaluate on rows or with lm-eval. `tunesmith evaluations`: show the results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunesmith._http.errors import InvalidArgumentError
from tunesmith._sdk.client import Client
from tunesmith._sdk.harness import run_harness
from tunesmith_schema import EvaluationStatus, RequestedEvaluation, TaskResults

from .chat import compared_models
from .evaluation import show_evaluation
from .grader import read_grader
from .output import AsJson, Limit, age, show_done, show_fields, show_json, show_page, show_table
from .session import connected

app = typer.Typer(help="Evaluations of models.", no_args_is_help=True)

EvaluationId = Annotated[str, typer.Argument(metavar="ID", help="eval-...")]


def add_to(cli: typer.Typer) -> None:
    cli.command("eval")(evaluate)
    cli.add_typer(app, name="evaluations")


def evaluate(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="Base model, tuned model (ft:...) or checkpoint.")],
    data: Annotated[str | None, typer.Option(help="Local file or file id with the rows.")] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL2",
            help="Model to compare with; default: the base model of a tuned model.",
        ),
    ] = None,
    grader: Annotated[
        str | None,
        typer.Option(metavar="FILE|JSON", help="Grader for greedy answers."),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Tasks of lm-eval, in place of --data."),
    ] = None,
    include_path: Annotated[
        Path | None, typer.Option(help="Folder with more tasks (YAML), for --tasks.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of documents of each task, for --tasks."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare a model with its base model on rows of data, or run tasks of lm-eval on a model.

    A training worker runs the evaluation between two jobs. Ctrl-C leaves the evaluation running.
    """
    with connected(ctx) as client:
        if tasks is None:
            if data is None:
                raise InvalidArgumentError(
                    "no rows and no tasks to evaluate on",
                    hint="pass --data FILE, or --tasks NAME,...",
                )
            _refuse_options("--data", {"--include-path": include_path, "--limit": limit})
            _evaluate_rows(client, model, data, against, grader, as_json)
            return
        _refuse_options("--tasks", {"--data": data, "--against": against, "--grader": grader})
        client.models.retrieve(model)
        results = run_harness(
            client,
            model,
            tasks,
            include_path=include_path,
            limit=limit,
        )
        stored = client.evaluations.create(model=model, task_results=results)
        _show(stored, as_json)


def _refuse_options(option: str, others: dict[str, object]) -> None:
    for name, value in others.items():
        if value is not None:
            raise InvalidArgumentError(f"{name} has no effect with {option}: leave it out")


def _evaluate_rows(
    client: Client,
    model: str,
    data: str,
    against: str | None,
    grader: str | None,
    as_json: bool,
) -> None:
    names = compared_models(client, model, against)
    created = client.evaluations.create(
        model=model,
        file=data,
        against=names[1] if len(names) > 1 else None,
        grader=read_grader(grader),
    )
    told = ""

    def tell(evaluation: RequestedEvaluation) -> None:
        nonlocal told
        waits = f", waits for {evaluation.waiting_for}" if evaluation.waiting_for else ""
        text = f"{evaluation.id}: {evaluation.status}{waits}"
        if text != told:
            told = text
            typer.echo(text, err=True)

    try:
        ended = client.evaluations.wait(created.id, on_state=tell)
    except KeyboardInterrupt:
        typer.echo(
            f"{created.id} continues; see it with: tunesmith evaluations show {created.id}",
            err=True,
        )
        raise typer.Exit(130) from None
    _show(ended, as_json)


@app.command("list")
def list_evaluations(
    ctx: typer.Context,
    limit: Limit = 20,
    model: Annotated[str | None, typer.Option(help="Only evaluations of this model.")] = None,
    as_json: AsJson = False,
) -> None:
    """List evaluations, newest first."""
    with connected(ctx) as client:
        show_page(
            client.evaluations.list(limit=limit, model=model),
            as_json,
            ("id", "model", "status", "verdict", "age"),
            lambda item: (
                *(item.id, item.model, str(item.status)),
                *(item.verdict or "", age(item.created_at)),
            ),
        )


@app.command("show")
def show(ctx: typer.Context, evaluation_id: EvaluationId, as_json: AsJson = False) -> None:
    """Show an evaluation: scores, verdict and answers."""
    with connected(ctx) as client:
        _show(client.evaluations.retrieve(evaluation_id), as_json)


@app.command("cancel")
def cancel(ctx: typer.Context, evaluation_id: EvaluationId, as_json: AsJson = False) -> None:
    """Cancel an unfinished evaluation."""
    with connected(ctx) as client:
        cancelled = client.evaluations.cancel(evaluation_id)
    show_done(cancelled, as_json, f"cancelled {cancelled.id}")


@app.command("delete")
def delete(ctx: typer.Context, evaluation_id: EvaluationId, as_json: AsJson = False) -> None:
    """Delete an ended evaluation."""
    with connected(ctx) as client:
        deleted = client.evaluations.delete(evaluation_id)
    show_done(deleted, as_json, f"deleted {deleted.id}")


def _show(evaluation: RequestedEvaluation, as_json: bool) -> None:
    if as_json:
        show_json(evaluation)
    elif evaluation.result is not None:
        names = {"model": evaluation.model}
        if evaluation.against is not None:
            names["against"] = evaluation.against
        show_evaluation(evaluation.result, names)
    elif evaluation.task_results is not None:
        _show_tasks(evaluation.task_results)
    else:
        error = evaluation.error
        show_fields(
            [
                ("id", evaluation.id),
                ("model", evaluation.model),
                ("against", evaluation.against),
                ("file", evaluation.filename),
                ("status", evaluation.status),
                ("waits for", evaluation.waiting_for),
                ("error", error and error.message),
                ("hint", error and error.hint),
            ]
        )
    if evaluation.status is EvaluationStatus.FAILED and not as_json:
        raise typer.Exit(1)


def _show_tasks(results: TaskResults) -> None:
    rows = []
    for result in results.tasks:
        for name, value in result.metrics.items():
            error = result.errors.get(name)
            margin = "" if error is None else f"± {error:.4f}"
            documents = "" if result.samples is None else str(result.samples)
            rows.append((result.task, name, f"{value:.4f}", margin, documents))
    show_table(("task", "metric", "value", "standard error", "documents"), rows)
