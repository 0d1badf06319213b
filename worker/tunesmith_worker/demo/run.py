"""Main path of the demo: data, service, jobs, downloads, comparison, summary.

The demo uses only the public API, like a user's own program.
"""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

import tunesmith
from tunesmith_schema import EventKind
from tunesmith_worker.rundir.process import quick_imports
from tunesmith_worker.supervisor.device_health import describe_device

from .files import prepare_output
from .recipes import SEED
from .reward import reward_summary
from .service import running_service
from .summary import JobSummary, Sample, Summary, render_markdown
from .task import Training, exact_match, facts_right, invented_task, own_task

BASE_NAME = "demo-base"
"""Folder of the base model that the demo makes; jobs can use the name later."""
SAMPLES = 4
"""Number of answers shown side by side."""


class Stopwatch:
    """Seconds by stage."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()
        self.seconds: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """Add the time since the last lap to a stage."""
        now = time.monotonic()
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + now - self._last, 2)
        self._last = now

    @property
    def total(self) -> float:
        return round(time.monotonic() - self._started, 2)


def run_demo(
    folder: Path, model: str | None, data: Path | None, max_steps: int | None, console: Console
) -> Summary:
    """Run the demo. Without `model` and `data` it makes its own."""
    watch = Stopwatch()
    output = prepare_output(folder)
    if model is None or data is None:
        task = invented_task(output, max_steps)
    else:
        task = own_task(output, model, data, max_steps)
    console.print(task.description)
    watch.lap("prepare")
    with (
        running_service(output / "service", task.model_dir, output / "service.log") as service,
        tunesmith.Client(service.base_url, service.api_key) as client,
    ):
        console.print(f"The service runs at {service.base_url}")
        watch.lap("start_service")
        model_name, base, jobs = task.model, task.base, []
        if task.pretraining is not None:
            job = _train(client, model_name, task.pretraining, console)
            jobs.append((task.pretraining, job))
            watch.lap("pretrain")
            base = str(client.adapters.download(job.id, output / "models" / BASE_NAME))
            assert job.fine_tuned_model is not None, "the job succeeded"
            model_name = job.fine_tuned_model
            watch.lap("download")
        job = _train(client, model_name, task.tuning, console)
        jobs.append((task.tuning, job))
        watch.lap("lora")
        adapter = client.adapters.download(job.id, output / "adapter")
        losses = [(training.title, job.metrics()) for training, job in jobs]
        watch.lap("download")
        reward, rewards = None, None
        if task.reinforcement is not None:
            job = _train(client, model_name, task.reinforcement, console)
            jobs.append((task.reinforcement, job))
            watch.lap("grpo")
            client.adapters.download(job.id, output / "grpo-adapter")
            reward, rewards = reward_summary(job), (task.reinforcement.title, job.metrics())
        job_summaries = tuple(_job_summary(client, training, job) for training, job in jobs)
        watch.lap("download")
    watch.lap("stop_service")

    console.print("Comparing the model with and without the adapter ...")
    with quick_imports():  # torch is imported only now, to leave the memory to the jobs
        from .measure import compare
        from .plot import Curve, plot_losses, plot_reward
    comparison = compare(
        base,
        adapter,
        task.tuning.valid,
        num_answers=task.num_answers,
        max_new_tokens=task.max_new_tokens,
    )
    watch.lap("measure")
    curves = [Curve(title=title, points=points) for title, points in losses]
    plot_losses(curves, output / "loss.png")
    if rewards is not None:
        plot_reward(Curve(title=rewards[0], points=rewards[1]), output / "reward.png")
    watch.lap("report")

    expected, known = comparison.expected, task.answers_are_known
    before, after = comparison.base.answers, comparison.tuned.answers
    answers = zip(comparison.prompts[:SAMPLES], expected, before, after, strict=False)
    summary = Summary(
        base_model=model_name,
        parameters=comparison.parameters,
        device=describe_device(),
        held_out_rows=comparison.num_rows,
        base_loss=comparison.base.loss,
        tuned_loss=comparison.tuned.loss,
        base_exact_match=exact_match(before, expected) if known else None,
        tuned_exact_match=exact_match(after, expected) if known else None,
        base_facts_right=facts_right(before, expected) if known else None,
        tuned_facts_right=facts_right(after, expected) if known else None,
        seconds_total=watch.total,
        seconds=watch.seconds,
        jobs=job_summaries,
        reward=reward,
        samples=tuple(Sample(prompt=p, expected=e, base=b, tuned=t) for p, e, b, t in answers),
        output_path=str(output),
        adapter_path=str(adapter),
        model_dir=str(output / "models" if task.pretraining else task.model_dir or "") or None,
    )
    (output / "summary.json").write_text(summary.to_json(indent=2) + "\n", encoding="utf-8")
    (output / "summary.md").write_text(render_markdown(summary), encoding="utf-8")
    return summary


def _train(
    client: tunesmith.Client, model: str, training: Training, console: Console
) -> tunesmith.Job:
    console.print(f"[bold]{training.title}[/bold]: {training.rows} rows")
    job = client.fine_tuning.jobs.create(
        model=model,
        training_file=training.train,
        validation_file=training.valid,
        suffix=training.suffix,
        seed=SEED,
        grader=training.grader,
        recipe=training.recipe.model_dump(exclude_unset=True),  # other fields stay "auto"
    )
    return job.wait(progress=True)


def _job_summary(client: tunesmith.Client, training: Training, job: tunesmith.Job) -> JobSummary:
    last: dict[str, float | None] = {}
    for point in job.metrics():
        last |= point.values
    seconds = {
        str(event.data["phase"]): float(str(event.data["seconds"]))
        for event in client.fine_tuning.jobs.list_events(job.id, order="asc", limit=1000)
        if event.kind is EventKind.PHASE
    }
    return JobSummary(
        id=job.id,
        title=training.title,
        model=job.model,
        fine_tuned_model=job.fine_tuned_model or "",
        rows=training.rows,
        steps=job.step,
        trained_tokens=job.trained_tokens or 0,
        train_loss=last.get("train_loss"),
        valid_loss=last.get("valid_loss"),
        seconds=seconds,
    )
