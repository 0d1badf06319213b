"""MAIN PATH of the demo, top to bottom: data -> service -> job(s) -> download -> before and after.

Everything goes through the public API, as a user's own program would.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

import tunesmith
from tunesmith_schema import EventKind
from tunesmith_worker.rundir.process import quick_imports
from tunesmith_worker.supervisor.device_health import describe_device

from .output import prepare_output
from .recipes import SEED
from .reinforcement import reward_summary
from .service import running_service
from .summary import JobSummary, Sample, Summary, render_markdown
from .task import Task, Training, exact_match, facts_right, invented_task, own_task

BASE_NAME = "demo-base"
"""Folder of the base model that the demo makes: a name that jobs can use afterwards."""
SAMPLES = 4
"""Answers shown side by side."""


@dataclass(frozen=True, kw_only=True)
class Options:
    output: Path
    model: str | None = None
    """A folder or a hub id; None: the demo makes its own."""
    data: Path | None = None
    max_steps: int | None = None


class Stopwatch:
    """Seconds since the last look, by name."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()
        self.seconds: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name] = round(self.seconds.get(name, 0.0) + now - self._last, 2)
        self._last = now

    @property
    def total(self) -> float:
        return round(time.monotonic() - self._started, 2)


def run_demo(options: Options, say: Console) -> Summary:
    watch = Stopwatch()
    output = prepare_output(options.output)
    task = _task(options, output)
    say.print(task.description)
    watch.lap("prepare")

    with (
        running_service(output / "service", task.model_dir, output / "service.log") as service,
        tunesmith.Client(service.base_url, service.api_key) as client,
    ):
        say.print(f"A service runs at {service.base_url}")
        watch.lap("start_service")
        model, base, jobs = task.model, task.base, []
        if task.pretraining is not None:
            job = _train(client, model, task.pretraining, say)
            jobs.append((task.pretraining, job))
            watch.lap("pretrain")
            base = str(client.adapters.download(job.id, output / "models" / BASE_NAME))
            assert job.fine_tuned_model is not None, "it succeeded"
            model = job.fine_tuned_model
            watch.lap("download")
        job = _train(client, model, task.tuning, say)
        jobs.append((task.tuning, job))
        watch.lap("lora")
        adapter = client.adapters.download(job.id, output / "adapter")
        curves = [(training.title, job.metrics()) for training, job in jobs]
        watch.lap("download")
        reward, rewards = None, None
        if task.reinforcement is not None:
            job = _train(client, model, task.reinforcement, say)
            jobs.append((task.reinforcement, job))
            watch.lap("grpo")
            client.adapters.download(job.id, output / "grpo-adapter")
            reward, rewards = reward_summary(job), (task.reinforcement.title, job.metrics())
        told = [_job_summary(client, training, job) for training, job in jobs]
        watch.lap("download")
    watch.lap("stop_service")

    say.print("Asking the model with and without the adapter ...")
    with quick_imports():  # torch only now: until here it would only take the jobs' memory
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

    plot_losses(
        [Curve(title=title, points=points) for title, points in curves], output / "loss.png"
    )
    if rewards is not None:
        title, points = rewards
        plot_reward(Curve(title=title, points=points), output / "reward.png")
    watch.lap("report")
    expected, before, after = (
        comparison.expected,
        comparison.base.answers,
        comparison.tuned.answers,
    )
    known = task.answers_are_known
    summary = Summary(
        base_model=model,
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
        jobs=tuple(told),
        reward=reward,
        samples=_samples(comparison.prompts, expected, before, after),
        output_path=str(output),
        adapter_path=str(adapter),
        model_dir=str(output / "models" if task.pretraining else task.model_dir or "") or None,
    )
    (output / "summary.json").write_text(summary.to_json(indent=2) + "\n", encoding="utf-8")
    (output / "summary.md").write_text(render_markdown(summary), encoding="utf-8")
    return summary


def _task(options: Options, output: Path) -> Task:
    if options.model is None or options.data is None:
        return invented_task(output, options.max_steps)
    return own_task(output, options.model, options.data, options.max_steps)


def _train(client: tunesmith.Client, model: str, training: Training, say: Console) -> tunesmith.Job:
    say.print(f"[bold]{training.title}[/bold]: {training.rows} rows")
    job = client.fine_tuning.jobs.create(
        model=model,
        training_file=training.train,
        validation_file=training.valid,
        suffix=training.suffix,
        seed=SEED,
        grader=training.grader,
        # Only what was chosen: the rest stays "auto" for the trainer.
        recipe=training.recipe.model_dump(exclude_unset=True),
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


def _samples(
    prompts: Sequence[str], expected: Sequence[str], before: Sequence[str], after: Sequence[str]
) -> tuple[Sample, ...]:
    rows = zip(prompts[:SAMPLES], expected, before, after, strict=False)
    return tuple(Sample(prompt=p, expected=e, base=b, tuned=t) for p, e, b, t in rows)
