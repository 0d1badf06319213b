"""Run the demo: create data, start the service, run jobs, download and compare the models, print a
summary.

The demo uses only the public API, like a user's own program.
"""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

import tunesmith
from tunesmith_worker.rundir.process import quick_imports
from tunesmith_worker.supervisor.device_health import describe_device

from .files import prepare_output
from .recipes import GRADER, GRPO, SEED
from .results import JobResult, Summary
from .service import running_service
from .summary import ANSWERS, render_page
from .task import Training, invented_task, own_task


def run_demo(
    folder: Path, model: str | None, data: Path | None, max_steps: int | None, console: Console
) -> Summary:
    """Run the demo. Without `model` and `data`, the demo creates a model and data."""
    started = time.monotonic()
    output = prepare_output(folder)
    if model is None or data is None:
        task = invented_task(output)
    else:
        task = own_task(output, model, data, max_steps)
    console.print(task.description)
    pretrain = grpo = None
    with running_service(output, task.model_dir) as client:
        model = task.model
        if task.pretrain is not None:
            pretrain = _train(client, model, task.pretrain, Path(task.base), console)
            assert pretrain.job.fine_tuned_model is not None, "the job succeeded"
            model = pretrain.job.fine_tuned_model
        tune = _train(client, model, task.tune, output / "adapter", console)
        if task.grpo is not None:
            grpo = _train(client, model, task.grpo, output / "grpo-adapter", console)

    console.print("Comparing the model with and without the adapter ...")
    with quick_imports():  # import torch only now, so that the jobs have more memory
        from .measure import compare
        from .plot import plot_losses, plot_reward
    num_answers = None if pretrain else ANSWERS  # all rows: the demo's own model is fast
    comparison = compare(task.base, output / "adapter", task.tune.valid, num_answers)
    plot_losses([job for job in (pretrain, tune) if job], output / "loss.png")
    if grpo is not None:
        plot_reward(grpo, output / "reward.png")
    summary = Summary(
        output=output,
        model_dir=Path(task.base).parent if task.model_dir else None,
        device=describe_device(),
        seconds=time.monotonic() - started,
        comparison=comparison,
        tune=tune,
        pretrain=pretrain,
        grpo=grpo,
    )
    (output / "summary.json").write_text(summary.to_json(), encoding="utf-8")
    (output / "summary.md").write_text(render_page(summary), encoding="utf-8")
    return summary


def _train(
    client: tunesmith.Client, model: str, training: Training, result: Path, console: Console
) -> JobResult:
    console.print(f"[bold]{training.title}[/bold]: {training.rows} rows")
    job = client.fine_tuning.jobs.create(
        model=model,
        training_file=training.train,
        validation_file=training.valid,
        suffix=training.train.stem,
        seed=SEED,
        grader=GRADER if training.recipe is GRPO else None,
        recipe=training.recipe.model_dump(exclude_unset=True),  # other fields stay "auto"
    )
    job.wait(progress=True)
    client.adapters.download(job.id, result)
    return JobResult(title=training.title, rows=training.rows, job=job, points=job.metrics())
