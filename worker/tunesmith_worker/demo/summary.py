"""Results of a demo, rendered as summary.json and summary.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from .reward import RewardSummary

STAGES = {
    "prepare": "data and tokenizer made",
    "start_service": "service started",
    "pretrain": "full training from random weights",
    "lora": "LoRA",
    "grpo": "GRPO",
    "download": "weights and adapter downloaded",
    "stop_service": "service stopped",
    "measure": "model sampled with and without the adapter",
    "report": "plot and summary written",
}


@dataclass(frozen=True, kw_only=True)
class JobSummary:
    id: str
    title: str
    model: str
    fine_tuned_model: str
    rows: int
    steps: int
    trained_tokens: int
    train_loss: float | None
    valid_loss: float | None
    seconds: dict[str, float]
    """Seconds by phase, from the job's events."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    prompt: str
    expected: str
    base: str
    tuned: str


@dataclass(frozen=True, kw_only=True)
class Summary:
    base_model: str
    parameters: int
    device: str
    held_out_rows: int
    base_loss: float
    tuned_loss: float
    base_exact_match: float | None
    """Share of greedy answers equal to the expected answer; None for a user's own data."""
    tuned_exact_match: float | None
    base_facts_right: float | None
    """Share of answers in any form that name all facts; None for a user's own data."""
    tuned_facts_right: float | None
    seconds_total: float
    seconds: dict[str, float]
    jobs: tuple[JobSummary, ...]
    """Jobs in their order; a GRPO job is the last."""
    reward: RewardSummary | None
    """Reward of the GRPO job; None for a user's own data."""
    samples: tuple[Sample, ...]
    output_path: str
    adapter_path: str
    model_dir: str | None

    def to_json(self, *, indent: int | None = None) -> str:
        return json.dumps(asdict(self), indent=indent, ensure_ascii=False)


def results(summary: Summary) -> list[tuple[str, str, str]]:
    """Return name, value before and value after of each figure."""
    rows = []
    for name, before, after in (
        ("exact match", summary.base_exact_match, summary.tuned_exact_match),
        ("all facts right", summary.base_facts_right, summary.tuned_facts_right),
    ):
        if before is not None and after is not None:
            rows.append((name, f"{before:.0%}", f"{after:.0%}"))
    rows.append(("loss per token", f"{summary.base_loss:.3f}", f"{summary.tuned_loss:.3f}"))
    return rows


def render_markdown(summary: Summary) -> str:
    tuning = summary.jobs[-1 if summary.reward is None else -2]
    answers = [
        _table(
            ("prompt", _code(sample.prompt)),
            ("base model", _code(sample.base)),
            ("with adapter", _code(sample.tuned)),
            ("expected", _code(sample.expected)),
        )
        for sample in summary.samples
    ]
    phases = [
        f"{job.title}: " + ", ".join(f"{name} {s:.1f} s" for name, s in job.seconds.items()) + "."
        for job in summary.jobs
    ]
    stages = [(STAGES.get(name, name), f"{s:.1f}") for name, s in summary.seconds.items()]
    parts = [
        "# Results of the demo",
        _jobs(summary),
        f"## Before and after, on {summary.held_out_rows} held-out rows",
        _table(("", "base model", "with adapter"), *results(summary)),
        *_measured_loss(summary, tuning),
        *([] if summary.base_exact_match is None else [_ABOUT_FIGURES]),
        "![loss of each job](loss.png)",
        "## Answers side by side",
        *answers,
        *([] if summary.reward is None else _reward(summary.reward)),
        f"## Time: {summary.seconds_total:.0f} seconds",
        _table(("", "seconds"), *stages),
        *phases,
        "## Files",
        _table(("", "path"), *_paths(summary)),
        "## The same from your own program",
        _program(summary, tuning),
    ]
    return "\n\n".join(parts) + "\n"


_ABOUT_FIGURES = """\
The held-out prompts are about inhabitants that LoRA was not trained on. The base model knows their
facts; only the adapter answers every question in JSON. *Exact match* requires both in a greedy
answer, character by character. *All facts right* accepts any form."""

_ABOUT_REWARD = """\
The base model has not seen polite questions ("Who is ..., please?"). In the first step it answered
{json:.0%} of them in JSON, not always with the right facts. GRPO was given no answers. A grader
scored the model's own completions, a group of eight for each question: a third for each right fact
in a JSON answer, 0 for prose. Completions above their group's mean become more likely."""


def _jobs(summary: Summary) -> str:
    lines = [
        f"Device: {summary.device}. Model: {summary.parameters / 1e6:.2f} million parameters. Jobs "
        "on a Tunesmith service on this machine:\n"
    ]
    for number, job in enumerate(summary.jobs, start=1):
        figures = {"training loss": job.train_loss, "validation loss": job.valid_loss}
        if summary.reward is not None and job.id == summary.reward.job_id:
            figures = {"reward": summary.reward.after}
        final = [f"{name} {value:.3f}" for name, value in figures.items() if value is not None]
        lines.append(
            f"{number}. **{job.title}** (`{job.id}`): `{job.model}` on {job.rows} rows, "
            f"{job.steps} steps, {job.trained_tokens:,} trained tokens. Result: "
            f"`{job.fine_tuned_model}`; {', '.join(final)}."
        )
    return "\n".join(lines)


def _measured_loss(summary: Summary, job: JobSummary) -> list[str]:
    if job.valid_loss is None:
        return []
    return [
        f"The loss with adapter was measured with stock PEFT on the downloaded files: "
        f"{summary.tuned_loss:.5f}. The job's last validation loss was {job.valid_loss:.5f}."
    ]


def _reward(reward: RewardSummary) -> list[str]:
    means = [("training prompts", f"{reward.before:.2f}", f"{reward.after:.2f}")]
    if reward.held_out is not None:
        means.append(("held-out prompts", "", f"{reward.held_out:.2f}"))
    group = [
        (_code(answer.text), _number(answer.reward, ".2f"), _number(answer.advantage, "+.2f"))
        for answer in reward.answers
    ]
    return [
        "## GRPO: a reward instead of answers",
        _ABOUT_REWARD.format(json=reward.json_share),
        _table(("mean reward", "first step", "last steps"), *means),
        "![reward of the GRPO job](reward.png)",
        f"One group of step {reward.step}:",
        _table((f"prompt {_code(reward.question)}", "reward", "advantage"), *group),
        "All completions, and the report of time and memory (start the service first, see below):",
        f"```sh\ntunesmith jobs samples {reward.job_id}\n"
        f"tunesmith jobs report {reward.job_id}\n```",
    ]


def _paths(summary: Summary) -> Iterable[tuple[str, str]]:
    output = Path(summary.output_path)
    for name, path in (
        ("adapter (stock PEFT)", Path(summary.adapter_path)),
        ("adapter of the GRPO job", output / "grpo-adapter"),
        ("base model", output / "models"),
        ("data", output / "data"),
        ("the service's data", output / "service"),
    ):
        if path.is_dir():
            yield name, f"`{path}`"


def _program(summary: Summary, job: JobSummary) -> str:
    output = Path(summary.output_path)
    model_dirs = f"TUNESMITH_MODEL_DIRS='{summary.model_dir}' " if summary.model_dir else ""
    return f"""\
Start the service again; it still has the jobs and models from above:

```sh
{model_dirs}tunesmith serve --data-dir '{output / "service"}'
export TUNESMITH_API_KEY=$(cat '{output / "service" / "api-key"}')  # in the second terminal
```

```python
import tunesmith

client = tunesmith.Client()
job = client.fine_tuning.jobs.create(
    model="{job.model}",
    training_file="{output / "data" / "tune.jsonl"}",
    validation_file="{output / "data" / "tune_valid.jsonl"}",
)
job.wait(progress=True)
client.adapters.download(job.id, "my-adapter")
```"""


def _table(head: tuple[str, ...], *rows: tuple[str, ...]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _code(text: str, limit: int = 300) -> str:
    """Return one line of code for a table cell."""
    line = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{line[:limit]}{'...' if len(line) > limit else ''}`" if line else "(nothing)"


def _number(value: float | None, form: str) -> str:
    return "none" if value is None else f"{value:{form}}"
