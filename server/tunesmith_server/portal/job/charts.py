"""Charts of the job page: the curves of each chart, and their drawing for browsers without
scripts."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tunesmith_schema.rollout_limits import largest_gap
from tunesmith_server.portal.view import path

WIDTH, HEIGHT = 600, 160
"""Width and height, in SVG units, of the drawing for browsers without scripts."""
LOG_FACTOR = 30.0
"""A scale becomes logarithmic if the largest value is more than this many times the smallest
value."""
MAX_SCORES = 4
"""Maximum number of scores in one chart."""
TABLE_ROWS = 16
POINTS = 128
"""Number of points of a curve in the drawing for browsers without scripts."""

VALIDATION = frozenset({"valid_loss", "valid_reward"})
"""Metrics of the validation rows."""

Step = TypeVar("Step", int, float)
Curves = Mapping[str, Mapping[str, Any]]
"""Curves by metric, each a JSON object with `steps` and `values`."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Chart whose curves share one vertical scale."""

    title: str
    """Title of the chart, with the unit."""
    series: tuple[tuple[str, str], ...]
    """Metrics of the curves, each with its label."""
    is_main: bool = False
    may_be_log: bool = False
    """True if the scale becomes logarithmic when the values span a factor of LOG_FACTOR."""
    is_stack: bool = False
    """True if the values are shares, which are drawn on top of each other."""
    band: str = ""
    """Metric whose value is the half width of a band around the first curve; empty for no band."""
    is_folded: bool = False
    """True if the chart is hidden until the visitor opens it."""
    limit: float | None = None
    """Value above which the trainer warns; drawn as a line."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return all metrics of the chart."""
        return (*(name for name, _ in self.series), *((self.band,) if self.band else ()))

    @property
    def listed(self) -> str:
        """Return the metrics with their labels, in the format of the HTML element `ts-chart`."""
        return ",".join(f"{name}:{label}" for name, label in self.series)


_MEMORY = Chart(
    title="Memory (bytes)", is_folded=True,
    series=(
        ("memory_rss", "Resident"), ("memory_allocated", "Allocated"),
        ("memory_reserved", "Reserved"), ("memory_pinned", "Pinned"),
    ),
)  # fmt: skip
_SUPERVISED = (
    Chart(
        title="Loss (nats per token)", is_main=True, may_be_log=True,
        series=(("train_loss", "Training"), ("valid_loss", "Validation")),
    ),
    Chart(title="Learning rate", series=(("learning_rate", "Rate"),)),
    Chart(title="Gradient norm", series=(("grad_norm", "Norm"),), may_be_log=True),
    Chart(title="Tokens per second", series=(("tokens_per_second", "Tokens per second"),)),
    Chart(title="Token accuracy (share)", series=(("train_mean_token_accuracy", "Training"),)),
    _MEMORY,
)  # fmt: skip
_REWARD = Chart(
    title="Reward", is_main=True, band="reward_std",
    series=(("reward", "Reward"), ("valid_reward", "Held out")),
)  # fmt: skip
_RATIOS = Chart(
    title="Probability ratio of training to generation",
    series=(
        ("importance_ratio", "Mean"), ("importance_ratio_max", "Largest"),
        ("importance_masked_share", "Share above the limit"),
    ),
)  # fmt: skip
_REINFORCEMENT = (
    Chart(
        title="Groups with equal rewards, cut and ungraded completions (share)",
        series=(
            ("frac_reward_zero_std", "Equal rewards"), ("truncated_share", "Cut"),
            ("ungraded_share", "Ungraded"),
        ),
    ),
    Chart(title="KL and entropy (nats per token)", series=(("kl", "KL"), ("entropy", "Entropy"))),
    Chart(
        title="Completion length (tokens)",
        series=(("completion_length", "Mean"), ("completion_length_max", "Longest")),
    ),
    Chart(title="Clip ratio (share)", series=(("clip_ratio", "Clipped"),)),
    Chart(
        title="Log-prob difference between generation and training", may_be_log=True,
        series=(("rollout_gap", "Gap"),),
    ),
    Chart(title="Gradient norm", series=(("grad_norm", "Norm"),), may_be_log=True),
    Chart(
        title="Time by phase (share)", is_stack=True,
        series=(
            ("generate_share", "Generate"), ("grade_share", "Grade"), ("sync_share", "Sync"),
            ("log_probs_share", "Log-probs"), ("forward_share", "Forward"),
            ("backward_share", "Backward"),
        ),
    ),
    _MEMORY,
)  # fmt: skip


def charts_of(
    *,
    is_reinforcement: bool,
    names: Collection[str],
    precision: str = "auto",
    validates: bool = False,
) -> list[Chart]:
    """Return the charts of a job; `names` are the names of the job's metrics.

    `precision`: precision of the job's training, such as `bf16`. `validates`: True if the job has
    validation rows. If `validates` is False, metrics of the validation get no curve unless they
    have values.
    """
    found = _charts(is_reinforcement, names, precision)
    hidden = set() if validates else VALIDATION.difference(names)
    return [
        replace(chart, series=tuple(item for item in chart.series if item[0] not in hidden))
        for chart in found
    ]


def _charts(is_reinforcement: bool, names: Collection[str], precision: str) -> list[Chart]:
    if not is_reinforcement:
        return list(_SUPERVISED)
    scores = sorted(name for name in names if name.startswith("score_"))[:MAX_SCORES]
    series = tuple((name, name.removeprefix("score_").replace(",", " ")) for name in scores)
    by_grader = [Chart(title="Score of each grader", series=series)] if series else []
    ratios = [_RATIOS] if "importance_ratio" in names else []
    return [_REWARD, *by_grader, *ratios, *(_limited(chart, precision) for chart in _REINFORCEMENT)]


def _limited(chart: Chart, precision: str) -> Chart:
    if chart.names != ("rollout_gap",):
        return chart
    gap = largest_gap(precision)
    return replace(chart, limit=gap, title=f"{chart.title} (warning above {gap:g})")


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A chart with its drawing and its table for browsers without scripts."""

    chart: Chart
    paths: list[str]
    """Attribute `d` of each curve's SVG path; empty for a curve without values."""
    low: float | None
    """Lower end of the vertical scale."""
    high: float | None
    is_log: bool
    rows: Sequence[tuple[float, list[float | None]]]
    """Rows of the table: a step and the values of all curves."""
    last: list[float | None]
    """Last value of each curve."""


def drawn(chart: Chart, curves: Curves) -> Drawn:
    """Return the chart with its drawing and its table."""
    columns = [_points(curves.get(name)) for name, _ in chart.series]
    values = [value for column in columns for _, value in column]
    steps = [step for column in columns for step, _ in column]
    low, high = (min(values), max(values)) if values else (None, None)
    is_log = bool(chart.may_be_log and low and high and low > 0 and high / low > LOG_FACTOR)
    paths = ["" for _ in columns]
    if low is not None and high is not None and len(set(steps)) > 1:
        paths = [_path(column, (min(steps), max(steps)), (low, high), is_log) for column in columns]
    return Drawn(
        chart=chart,
        paths=paths,
        low=low,
        high=high,
        is_log=is_log,
        rows=_rows(columns),
        last=[column[-1][1] if column else None for column in columns],
    )


def last_values(curves: Curves) -> dict[str, float | None]:
    """Return the last known value of each curve."""
    points = {name: _points(curve) for name, curve in curves.items()}
    return {name: found[-1][1] if found else None for name, found in points.items()}


def _points(curve: Mapping[str, Any] | None) -> list[tuple[int, float]]:
    if curve is None:
        return []
    pairs = zip(curve["steps"], curve["values"], strict=True)
    return [(step, value) for step, value in pairs if value is not None and math.isfinite(value)]


def _path(
    column: Iterable[tuple[int, float]],
    steps: tuple[int, int],
    range_: tuple[float, float],
    is_log: bool,
) -> str:
    low, high = (math.log(end) for end in range_) if is_log else range_
    height, width = (high - low) or 1.0, steps[1] - steps[0]
    logs = math.log if is_log else float
    return path(
        (
            ((step - steps[0]) / width * WIDTH, HEIGHT - (logs(value) - low) / height * HEIGHT)
            for step, value in column
        ),
        digits=0,
    )


def _rows(
    columns: Sequence[Sequence[tuple[int, float]]],
) -> list[tuple[int, list[float | None]]]:
    """Return at most `TABLE_ROWS` rows, with equally spaced steps and the last step. The steps come
    from the curve with the fewest points. If this curve has fewer than `TABLE_ROWS` points, steps
    of the first curve are added."""
    known = [dict(column) for column in columns]
    steps = min((sorted(column) for column in known if column), key=len, default=[])
    if known and known[0] and len(steps) < TABLE_ROWS:
        steps = sorted(set(steps) | set(spread(sorted(known[0]), TABLE_ROWS - len(steps))))
    return [(step, [column.get(step) for column in known]) for step in spread(steps, TABLE_ROWS)]


def spread(steps: Sequence[Step], most: int) -> list[Step]:
    """Return at most `most` of the steps, equally spaced and including the last step."""
    if len(steps) <= most:
        return list(steps)
    return [steps[round(index * (len(steps) - 1) / max(1, most - 1))] for index in range(most)]
