"""`tunesmith jobs report`: the report of a run on one screen of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tunesmith_schema import TRAINING, JobReport, LayerMemory, Rollouts, Throughput

from .evaluation import render as render_evaluation
from .output import health_word, size

BAR_COLUMNS = 26
"""Number of columns of the longest bar."""
MIN_SHARE = 0.001
"""Minimum share of the total time for which a phase has its own line. All smaller phases share one
line."""


def show_report(report: JobReport) -> None:
    # Square brackets in texts are not markup.
    Console(markup=False, highlight=False, emoji=False).print(render(report))


def render(report: JobReport) -> RenderableType:
    """Make the text of a report: phases with their times, measurements, bottleneck and advice."""
    parts: list[RenderableType] = [_title(report), "", _phases(report), ""]
    parts += [_fields(_figures(report)), "", _fields(_advice(report))]
    if report.evaluation is not None:
        parts += ["", render_evaluation(report.evaluation, answers=False)]
    return Group(*parts)


def _title(report: JobReport) -> Text:
    state = report.outcome or ("running" if report.live else "worker lost")
    text = Text(f"{report.job_id}, attempt {report.attempt}: ")
    text.append(state, style={"succeeded": "green", "failed": "red"}.get(state, "yellow"))
    text.append(f" after {_seconds(report.wall_seconds)}")
    return text


def _phases(report: JobReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("phase", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    whole = report.wall_seconds or 1.0
    longest = max(report.phases.values(), default=0.0) or 1.0
    small: list[tuple[str, float]] = []
    for name, seconds in report.phases.items():
        if seconds / whole < MIN_SHARE:
            small.append((name, seconds))
            continue
        style = "cyan" if name in TRAINING else "blue"
        bar = Text("█" * max(1, round(seconds / longest * BAR_COLUMNS)), style=style)
        table.add_row(name, _seconds(seconds), f"{seconds / whole:.1%}", bar)
    if small:
        rest = sum(seconds for _, seconds in small)
        table.add_row(f"{len(small)} more", _seconds(rest), f"{rest / whole:.1%}", "")
    return table


def _figures(report: JobReport) -> Iterator[tuple[str, str]]:
    total = f" of {report.total_steps}" if report.total_steps else ""
    device = f" on {report.device}" if report.device else ""
    yield "steps", f"{report.steps}{total}{device}"
    if (throughput := report.throughput) is not None:
        yield (
            "tokens/s",
            f"{_number(throughput.tokens_per_second)} read, "
            f"{_number(throughput.trained_tokens_per_second)} trained",
        )
        if throughput.padding_share is not None:
            yield (
                "padding",
                f"{throughput.padding_share:.1%} of {throughput.slots:,} token positions",
            )
    if report.rollouts is not None:
        yield from _rollouts(report.rollouts, throughput)
    if (used := report.utilization) is not None:
        yield "MFU", f"{used.mfu:.1%}" if used.mfu is not None else used.reason
    peak = report.peak_memory
    kinds = (
        ("GPU allocated", peak.allocated),
        ("reserved", peak.reserved),
        ("of", peak.device_total),
        ("pinned", peak.pinned),
        ("process", peak.rss),
    )
    known = [f"{name} {size(amount)}" for name, amount in kinds if amount is not None]
    if known:
        yield "peak memory", ", ".join(known)
    if layers := _layers(report.layers):
        yield "layers", layers
    if report.first_step is not None:
        yield "first step", report.first_step
    if report.no_evaluation is not None:
        yield "evaluation", f"none: {report.no_evaluation}"
    if report.queued_seconds is not None:
        yield "queued", _whole_seconds(report.queued_seconds)
    if report.paused_seconds:
        yield "paused", f"{_seconds(report.paused_seconds)} without a connection to the server"
    for earlier in report.earlier_attempts:
        outcome = earlier.outcome or "worker lost"
        yield (
            f"attempt {earlier.attempt}",
            f"{outcome} after {_seconds(earlier.wall_seconds)}, {earlier.steps} steps",
        )


def _rollouts(rollouts: Rollouts, throughput: Throughput | None) -> Iterator[tuple[str, str]]:
    cut = rollouts.truncated_share
    yield (
        "completions",
        f"{rollouts.completions:,}, mean length {_number(rollouts.mean_length)} tokens, longest "
        f"{rollouts.longest:,}" + ("" if cut is None else f"; {cut:.1%} truncated"),
    )
    if rollouts.zero_std_share is not None:
        yield "groups", f"{rollouts.zero_std_share:.1%} with equal rewards (advantage 0)"
    if rollouts.ungraded_share:
        yield "ungraded", f"{rollouts.ungraded_share:.1%} of the completions, not trained on"
    graphs = f" ({rollouts.graph_steps:,} by CUDA graphs)" if rollouts.graph_steps else ""
    overall = _number(throughput.generated_tokens_per_second if throughput else None)
    yield (
        "generation",
        f"{_number(rollouts.tokens_per_second)} tokens/s while generating, {overall} overall; "
        f"{rollouts.decode_steps:,} decode steps{graphs}",
    )
    if rollouts.idle_share is not None:
        yield "idle", f"{rollouts.idle_share:.1%} of the step time: waiting, logging, trainer loop"
    merged = rollouts.weights == "merged"
    weights = "merged weights" if merged else "training weights, adapter merged temporarily"
    prompts = "shared prompts" if rollouts.layout == "shared" else "one prompt per completion"
    ratio = (
        f", {rollouts.token_ratio:.2f} x fewer tokens"
        if rollouts.token_ratio and rollouts.layout == "shared"
        else ""
    )
    engine = f"engine {rollouts.engine}; " if rollouts.engine else ""
    yield "rollouts", f"{engine}{weights}; {prompts}{ratio}"


def _layers(layers: LayerMemory) -> str:
    parts = []
    if layers.planned:
        counts = {kind: layers.planned.count(kind) for kind in ("keep", "recompute", "offload")}
        parts.append("plan: " + ", ".join(f"{n} {kind}" for kind, n in counts.items() if n))
    if layers.recomputes:
        parts.append(f"{sum(layers.recomputes):,} recomputes")
    if layers.offloads:
        parts.append(f"{sum(layers.offloads):,} offloads")
    return "; ".join(parts)


def _advice(report: JobReport) -> Iterator[tuple[str, str]]:
    if report.health is not None:
        yield "health", f"{health_word(report.health)}: {report.health.text}"
    yield "bound by", f"{report.bound.by.replace('_', ' ')}: {report.bound.text}"
    yield "more rows", report.saturation.text
    yield "advice", report.advice.text


def _fields(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def _seconds(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d} h" if hours else f"{minutes}:{rest:02d} min"


def _whole_seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.2f} s"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"
