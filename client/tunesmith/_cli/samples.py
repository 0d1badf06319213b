"""`tunesmith jobs samples`: what a reinforcement job drew, prompt by prompt."""

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
from .output import AsJson, Limit, show_page_json
from .session import connected

SHOWN = 1200
"""Characters of a text that are shown; of longer ones the beginning and the end."""


def samples(
    ctx: typer.Context,
    job_id: JobId,
    step: Annotated[
        int | None, typer.Option(min=0, help="Of this step; of the newest when not given.")
    ] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """What a reinforcement job drew and how it was graded. Long texts are cut in the middle here;
    --json has them whole."""
    with connected(ctx) as client:
        jobs = client.fine_tuning.jobs
        page = jobs.samples(job_id, step=step, limit=limit)
        missed = step is not None and not page.data and not as_json
        newest = jobs.samples(job_id, limit=1).data if missed else []
    if as_json:
        show_page_json(page.data, page.has_more)
    elif page.data:
        # Texts may hold square brackets, which are not markup.
        Console(markup=False, highlight=False).print(render(page.data))
    else:
        of_step = "" if step is None else f" at step {step}"
        typer.echo(f"no samples of {job_id}{of_step}" + _nearby(newest))


def add_to(app: typer.Typer) -> None:
    app.command("samples")(samples)


def _nearby(newest: list[Sample]) -> str:
    """Steps that train on the completions of an earlier one have none of their own."""
    return f"; its newest are of step {newest[0].step}" if newest else ""


def render(newest_first: Iterable[Sample]) -> RenderableType:
    """Newest step first; in a step, prompts and their completions as they were drawn."""
    parts: list[RenderableType] = []
    for _, of_step in groupby(newest_first, key=lambda sample: sample.step):
        in_order = list(of_step)[::-1]
        for _, group in groupby(in_order, key=lambda sample: sample.group):
            parts.extend(_group(list(group)))
    return Group(*parts)


def _group(samples: list[Sample]) -> Iterator[RenderableType]:
    first = samples[0]
    title = f"step {first.step}, row {first.row}, prompt of {first.prompt_tokens} tokens"
    yield Rule(Text(title, style="bold"), align="left", style="dim")
    yield Padding(Text(_shown(first.prompt), style="cyan"), (0, 0, 1, 0))
    for sample in samples:
        yield _verdict(sample)
        yield Padding(Text(_shown(sample.completion)), (0, 0, 1, 2))


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
        text.append(f"  {_visible(scores)}")
    return text


def _number(score: float | None) -> str:
    return "failed" if score is None else f"{score:.4g}"


def _shown(text: str) -> str:
    if len(text) > SHOWN:
        half = SHOWN // 2
        left_out = f"\n[... {len(text) - 2 * half:,} characters ...]\n"
        text = text[:half] + left_out + text[-half:]
    return _visible(text).strip("\n") or "(empty)"


def _visible(text: str) -> str:
    """What a model says may not steer the terminal."""
    return "".join(one if one.isprintable() or one in "\n\t" else repr(one)[1:-1] for one in text)
