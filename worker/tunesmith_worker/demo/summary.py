"""Render the results of a demo as summary.md, and in short form for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from .results import JobResult, Summary

ANSWERS = 4
"""Number of prompts whose answers are compared."""

_ABOUT_FIGURES = """\
The held-out prompts are about inhabitants that LoRA was not trained on. The base model knows the
facts of all inhabitants; only the adapter answers every question in JSON. *Exact match*: the greedy
answer equals the expected JSON in every character. *All facts right*: the answer contains all
facts, in JSON or prose."""

_ABOUT_REWARD = """\
The base model has not seen polite questions ("Who is ..., please?"), so it answers some in JSON and
some in prose. GRPO uses no example answers. A grader scored the model's own completions, eight for
each question: 1/3 for each right fact in a JSON answer, 0 for prose. GRPO makes a
completion more likely if its reward is above the mean reward for the question."""

_SERVICE = """\
## Start the service again

The service keeps these jobs and models. To start it again:

```sh
{serve}
```

In a second terminal:

```sh
export TUNESMITH_API_KEY=$(cat '{output}/service/api-key')
tunesmith jobs list
tunesmith jobs report {job}     # where the time and memory went
```"""


def render_short(summary: Summary) -> str:
    """Return the results, two answers and the rewards, for the terminal."""
    parts = [_figures(summary), *_answers(summary, 2)]
    if summary.grpo is not None:
        parts.append(_rewards(summary))
    return "\n\n".join(parts)


def render_page(summary: Summary) -> str:
    comparison, last_job = summary.comparison, summary.jobs[-1].job
    parts = [
        "# Results of the demo",
        f"Device: {summary.device}. Model: {comparison.parameters / 1e6:.2f} million parameters. "
        f"Time: {summary.seconds:.0f} seconds. "
        "These jobs ran on a Tunesmith service on this machine:",
        "\n".join(f"{n}. {_job(job)}" for n, job in enumerate(summary.jobs, start=1)),
        f"## Before and after, on {comparison.num_rows} held-out rows",
        _figures(summary),
        *_job_loss(summary),
        *([_ABOUT_FIGURES] if summary.pretrain else []),
        "![loss of each job](loss.png)",
        "## Answers side by side",
        *_answers(summary, ANSWERS),
        *(_grpo(summary, last_job.id) if summary.grpo else []),
        _SERVICE.format(serve=serve_command(summary), output=summary.output, job=last_job.id),
    ]
    return "\n\n".join(parts) + "\n"


def serve_command(summary: Summary, program: str = "tunesmith") -> str:
    """Return the command that starts the demo's service again, with its jobs and models."""
    environment = f"TUNESMITH_MODEL_DIRS='{summary.model_dir}' " if summary.model_dir else ""
    return f"{environment}{program} serve --data-dir '{summary.output}/service'"


def _job(result: JobResult) -> str:
    job = result.job
    metrics = {"train_loss": "training loss", "valid_loss": "validation loss"}
    if result.last("reward") is not None:
        metrics = {"reward": "reward"}
    last = {name: result.last(metric) for metric, name in metrics.items()}
    values = ", ".join(f"{name} {value:.3f}" for name, value in last.items() if value is not None)
    return (
        f"**{result.title}** (`{job.id}`): `{job.model}` on {result.rows} rows, {job.step} steps, "
        f"{job.trained_tokens or 0:,} trained tokens. Result: `{job.fine_tuned_model}`; {values}."
    )


def _figures(summary: Summary) -> str:
    rows = []
    for name, pair in summary.figures().items():
        form = ".3f" if name.startswith("loss") else ".0%"
        rows.append((name, *(f"{value:{form}}" for value in pair)))
    return _table(("", "base model", "with adapter"), *rows)


def _job_loss(summary: Summary) -> list[str]:
    job_loss = summary.tune.last("valid_loss")
    if job_loss is None:
        return []
    return [
        "The loss with adapter was measured with stock PEFT on the downloaded files: "
        f"{summary.comparison.tuned.loss:.5f}. The job's last validation loss was {job_loss:.5f}."
    ]


def _answers(summary: Summary, number: int) -> list[str]:
    c = summary.comparison
    answers = zip(c.prompts[:number], c.base.answers, c.tuned.answers, c.expected, strict=False)
    return [
        _table(
            ("prompt", _code(prompt)),
            ("base model", _code(base)),
            ("with adapter", _code(tuned)),
            ("expected", _code(expected)),
        )
        for prompt, base, tuned, expected in answers
    ]


def _rewards(summary: Summary) -> str:
    rewards = summary.rewards()
    return _table(("GRPO", *rewards), ("mean reward", *(f"{r:.2f}" for r in rewards.values())))


def _grpo(summary: Summary, job_id: str) -> list[str]:
    return [
        "## GRPO: a reward instead of answers",
        _ABOUT_REWARD,
        _rewards(summary),
        "![reward of the GRPO job](reward.png)",
        "To list all completions with their rewards, start the service again (see below) and run:",
        f"```sh\ntunesmith jobs samples {job_id}\n```",
    ]


def _table(head: Sequence[str], *rows: Sequence[str]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _code(text: str, limit: int = 300) -> str:
    line = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{line[:limit]}{'...' if len(line) > limit else ''}`" if line else "(nothing)"
