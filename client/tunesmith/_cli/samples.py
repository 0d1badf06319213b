"""`tunesmith jobs samples`: completions of a reinforcement job, grouped by prompt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from tunesmith_schema import Sample

from .jobs import JobId
from .output import AsJson, Limit, show_page_json, visible
from .session import connected

MAX_CHARACTERS = 1200
"""Maximum number of characters that are shown of one text; a longer text is cut in the middle."""


def samples(
    ctx: typer.Context,
    job_id: JobId,
    step: Annotated[
        int | None, typer.Option(min=0, help="Optimiser step (default: the newest steps).")
    ] = None,
    row: Annotated[
        int | None, typer.Option(min=1, help="Only completions of this row of the training file.")
    ] = None,
    reward_below: Annotated[
        float | None, typer.Option(help="Only completions with a lower reward.")
    ] = None,
    reward_above: Annotated[
        float | None, typer.Option(help="Only completions with a higher reward.")
    ] = None,
    cut: Annotated[
        bool, typer.Option("--cut", help="Only completions that reached the token limit.")
    ] = False,
    ungraded: Annotated[
        bool, typer.Option("--ungraded", help="Only completions without a reward.")
    ] = False,
    text: Annotated[
        str | None, typer.Option(help="Only prompts and completions with this text.")
    ] = None,
    spread: Annotated[
        bool,
        typer.Option(
            "--spread", help="Show prompts with the widest range of rewards first; needs --step."
        ),
    ] = False,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show generated completions of a reinforcement job with their rewards. Long texts are
    shortened; --json prints full texts."""
    with connected(ctx) as client:
        jobs = client.fine_tuning.jobs
        page = jobs.samples(
            job_id,
            step=step,
            row=row,
            reward_lt=reward_below,
            reward_gt=reward_above,
            ungraded=True if ungraded else None,
            finish_reason="length" if cut else None,
            q=text,
            sort="spread" if spread else None,
            limit=limit,
        )
        while not page.data and (following := page.next_page()) is not None:
            page = following  # a search reads a bounded number of samples for each page
        empty_step = step is not None and not page.data and not as_json
        newest = jobs.samples(job_id, limit=1).data if empty_step else []
    if as_json:
        show_page_json(page.data, page.has_more)
    elif page.data:
        # Square brackets in texts are not markup.
        shown = render(page.data, in_order=spread)
        Console(markup=False, highlight=False, emoji=False).print(shown)
    else:
        at_step = "" if step is None else f" at step {step}"
        typer.echo(f"{job_id} has no samples{at_step}" + _newest_step(newest))


def add_to(app: typer.Typer) -> None:
    app.command("samples")(samples)


def _newest_step(newest: list[Sample]) -> str:
    """Return a text that names the newest step with samples. If several steps train on the same
    completions, only the first of these steps has samples."""
    return f"; the newest are at step {newest[0].step}" if newest else ""


def render(samples: Iterable[Sample], *, in_order: bool = False) -> RenderableType:
    """Return samples for display. `samples` are sorted newest first; the samples of each step are
    displayed in the order of their generation. With `in_order`, the order of `samples` is kept."""
    parts: list[RenderableType] = []
    for _, step_samples in groupby(samples, key=lambda sample: sample.step):
        shown = list(step_samples)
        for _, group in groupby(
            shown if in_order else shown[::-1], key=lambda sample: sample.group
        ):
            parts.extend(_group(list(group)))
    return Group(*parts)


def _group(samples: list[Sample]) -> Iterator[RenderableType]:
    first = samples[0]
    title = f"step {first.step}, row {first.row}, prompt of {first.prompt_tokens} tokens"
    yield Rule(Text(title, style="bold"), align="left", style="dim")
    yield Padding(Text(_shortened(first.prompt), style="cyan"), (0, 0, 1, 0))
    for sample in samples:
        yield _verdict(sample)
        yield Padding(Text(_shortened(sample.completion)), (0, 0, 1, 2))


def _verdict(sample: Sample) -> Text:
    advantage = sample.advantage or 0.0
    style = "green" if advantage > 0 else "red" if advantage < 0 else "yellow"
    text = Text(overflow="fold")
    reward = "not graded" if sample.reward is None else f"reward {sample.reward:.4g}"
    text.append(reward, style=f"bold {style}")
    if sample.advantage is not None:
        text.append(f"  advantage {sample.advantage:+.3g}", style=style)
    cut = sample.finish_reason == "length"
    text.append(f"  {sample.completion_tokens} tokens", style="dim")
    text.append(", cut" if cut else "", style="red")
    if len(sample.scores) > 1 or None in sample.scores.values():
        scores = ", ".join(f"{name} {_number(score)}" for name, score in sample.scores.items())
        text.append(f"  {visible(scores)}")
    return text


def _number(score: float | None) -> str:
    return "failed" if score is None else f"{score:.4g}"


def _shortened(text: str) -> str:
    if len(text) > MAX_CHARACTERS:
        half = MAX_CHARACTERS // 2
        omission = f"\n[... {len(text) - 2 * half:,} characters ...]\n"
        text = text[:half] + omission + text[-half:]
    return visible(text).strip("\n") or "(empty)"
