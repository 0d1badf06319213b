"""What a demo found, and summary.md and summary.json from it. Measures and runs nothing."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from .markdown import code, table
from .reinforcement import RewardSummary, render_reward

NAMES = {
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
    """By phase, as the job's events tell it."""


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
    """Share of greedy answers equal to the expected one; None for a user's own data."""
    tuned_exact_match: float | None
    base_facts_right: float | None
    """Share of answers, in whatever form, that name all facts; None for a user's own data."""
    tuned_facts_right: float | None
    seconds_total: float
    seconds: dict[str, float]
    jobs: tuple[JobSummary, ...]
    """The reinforcement job, if there was one, is the last."""
    reward: RewardSummary | None
    """Of that job; None for a user's own data."""
    samples: tuple[Sample, ...]
    output_path: str
    adapter_path: str
    model_dir: str | None

    def to_json(self, *, indent: int | None = None) -> str:
        return json.dumps(asdict(self), indent=indent, ensure_ascii=False)


def results(summary: Summary) -> list[tuple[str, str, str]]:
    """Name, before and after of each number; for the terminal and for summary.md alike."""
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
    parts = [
        "# What the demo did",
        _story(summary),
        f"## Before and after, on {summary.held_out_rows} held-out rows",
        table(("", "base model", "with adapter"), results(summary)),
        *_proof(summary, tuning),
        *([_ABOUT_NUMBERS] if summary.base_exact_match is not None else []),
        "![loss of each job](loss.png)",
        "## Answers side by side",
        *[_sample(sample) for sample in summary.samples],
        *([] if summary.reward is None else [render_reward(summary.reward)]),
        f"## Where the {summary.seconds_total:.0f} seconds went",
        table(
            ("", "seconds"),
            [(NAMES.get(k, k), f"{v:.1f}") for k, v in summary.seconds.items()],
        ),
        *[
            f"{job.title}: "
            + ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in job.seconds.items())
            + "."
            for job in summary.jobs
        ],
        "## What is where",
        table(("", "path"), _paths(summary)),
        "## The same, from your own program",
        _program(summary, tuning),
    ]
    return "\n\n".join(parts) + "\n"


_ABOUT_NUMBERS = """\
The held-out prompts ask about inhabitants of whom LoRA was shown nothing. What they are, the base
model knows; that JSON is the answer to every question, only the adapter knows. *Exact match* wants
both, to the letter, from a greedy answer. *All facts right* takes any form of answer."""


def _story(summary: Summary) -> str:
    lines = []
    for number, job in enumerate(summary.jobs, start=1):
        losses = [
            f"{name} loss {value:.3f}"
            for name, value in (("training", job.train_loss), ("validation", job.valid_loss))
            if value is not None
        ]
        if summary.reward is not None and job.id == summary.reward.job_id:
            losses = [f"reward {summary.reward.after:.3f}"]
        lines.append(
            f"{number}. **{job.title}** (`{job.id}`): `{job.model}` on {job.rows} rows, "
            f"{job.steps} steps, {job.trained_tokens:,} trained tokens; at the end "
            f"{' and '.join(losses)}. It made `{job.fine_tuned_model}`."
        )
    return (
        f"A Tunesmith service on this machine ({summary.device}) ran, for a model of "
        f"{summary.parameters / 1e6:.2f} million parameters:\n\n" + "\n".join(lines)
    )


def _proof(summary: Summary, job: JobSummary) -> list[str]:
    if job.valid_loss is None:
        return []
    return [
        f"The loss with adapter was measured from the downloaded files, with stock PEFT: "
        f"{summary.tuned_loss:.5f}. The job had reported {job.valid_loss:.5f} as its last."
    ]


def _sample(sample: Sample) -> str:
    rows = [
        ("base model", code(sample.base)),
        ("with adapter", code(sample.tuned)),
        ("expected", code(sample.expected)),
    ]
    return table(("asked", code(sample.prompt)), rows)


def _paths(summary: Summary) -> list[tuple[str, str]]:
    output = Path(summary.output_path)
    paths = [("adapter (stock PEFT)", Path(summary.adapter_path))]
    if (output / "grpo-adapter").is_dir():
        paths.append(("adapter of the GRPO job", output / "grpo-adapter"))
    if (output / "models").is_dir():
        paths.append(("base model", output / "models"))
    paths += [("data", output / "data"), ("the service's data", output / "service")]
    return [(name, f"`{path}`") for name, path in paths]


def _program(summary: Summary, job: JobSummary) -> str:
    output = Path(summary.output_path)
    allowed = f"TUNESMITH_MODEL_DIRS='{summary.model_dir}' " if summary.model_dir else ""
    return f"""\
Start the service again; it still has the jobs and models from above:

```sh
{allowed}tunesmith serve --data-dir '{output / "service"}'
export TUNESMITH_API_KEY=$(cat '{output / "service" / "api-key"}')  # in the other terminal
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
