"""Rules that derive a job's health from its curves.

The rules are pure functions. docs/contributing/decisions/0033-health-of-a-run.md gives their
reasons.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from tunesmith_schema.health import HealthState, JobHealth

METRICS = (
    *("train_loss", "valid_loss", "updates_lost_fraction"),
    *("reward", "valid_reward", "reward_std", "frac_reward_zero_std"),
)
"""Metrics that the rules read."""

MIN_POINTS = 8
"""Number of logged points that a trend needs. With fewer points, only a divergence or a lack of
reward spread is recognised."""
CERTAIN = 4.0
"""A change counts as certain if it is at least this many times its standard error. In a run without
a trend, noise causes such a change with a probability of about 1 in 1000."""
FEW_POINTS = 4.0
"""With few points, the estimate of the noise is uncertain, so it is multiplied by 1 + FEW_POINTS /
n for n points."""
POSSIBLE = 2.0
"""Number of standard errors that are added to a measured change, to get the largest change that the
noise may hide."""
NAN_STEPS = 3
"""Number of logged NaNs that counts as a divergence. The trainer stops after this many NaNs in a
row."""

PEAK_FACTOR, PEAK_NATS = 2.0, 0.5
"""The loss diverged if it rose to twice its start and by at least 0.5 nats, and at the end of the
run is not below 90 % of its start (RECOVERED)."""
RECOVERED = 0.9
RISE_SHARE = 0.1
"""Smallest relative rise of the loss over the whole run that counts as a divergence."""
REBOUND_FACTOR, REBOUND_NATS = 1.5, 0.2
"""A rise from the lowest loss to the loss at the end of the run counts as a divergence if it is at
least this factor and at least this number of nats."""
OVERFIT_SHARE, OVERFIT_NATS = 0.03, 0.02
"""A rise from the lowest to the last validation loss counts as overfitting if it is at least this
share of the lowest loss and at least this number of nats. Every evaluation uses the same rows, so
the noise is small."""
NOTICEABLE_SHARE = 0.02
"""Smallest relative fall of the loss that counts as learning."""
USEFUL_SHARE = 0.1
"""Relative fall of the loss that a useful run should show. A flat curve has the health `unclear` if
the noise may hide a fall of this size, and `barely_moved` if the noise cannot hide it."""
LOST_SHARE = 0.9
"""If rounding loses at least this share of the weight updates, rounding is the reason for a flat
curve."""

EQUAL_SHARE = 0.9
"""A run has no reward spread if at least this share of its groups (completions of one prompt) have
equal rewards."""
NOTICEABLE_SPREAD, USEFUL_SPREAD, COLLAPSE_SPREAD = 0.1, 0.25, 0.5
"""Changes of the mean reward, in standard deviations of the reward within a group.
NOTICEABLE_SPREAD is the smallest rise that counts as learning. USEFUL_SPREAD is the rise that a
useful run should show; if the noise may hide a rise of this size, the health of a flat curve is
`unclear`. COLLAPSE_SPREAD is the fall that counts as a collapse."""


@dataclass(frozen=True)
class Point:
    """Mean of a metric over a few consecutive logged steps."""

    step: int
    """Last of the logged steps."""
    value: float | None
    """Mean of the finite values; None if no value is finite."""
    missing: int = 0
    """Number of NaNs among the values."""


Curves = Mapping[str, Sequence[Point]]
"""Points of each metric, lowest step first."""


@dataclass(frozen=True, kw_only=True)
class _Trend:
    """Change of a curve from its start to its last quarter."""

    start: float
    end: float
    errors: float
    """Change of the curve, in standard errors; positive if the curve rose."""
    hidden: float
    """Largest absolute change that the noise may hide."""

    @property
    def change(self) -> float:
        return self.end - self.start


def judge(curves: Curves) -> JobHealth:
    """Return the health of a run. Any metric may be missing in `curves`."""
    step = max((points[-1].step for points in curves.values() if points), default=0)
    state, text = _reinforcement(curves) if curves.get("reward") else _supervised(curves)
    return JobHealth(state=state, text=text, step=step)


_Verdict = tuple[HealthState, str]


def _supervised(curves: Curves) -> _Verdict:
    train, valid = curves.get("train_loss", ()), _finite(curves.get("valid_loss", ()))
    if nan := _nan(train):
        return nan
    points = _finite(train)
    values = [value for _, value in points]
    if diverged := _peak(points):
        return diverged
    if len(points) < MIN_POINTS:
        return HealthState.UNCLEAR, _too_few(len(points), "training loss")
    trend, noise = _trend(values), _noise(values)
    if trend.errors >= CERTAIN and trend.change >= RISE_SHARE * trend.start:
        return HealthState.DIVERGED, f"The training loss rose {_from_to(trend)}."
    low_step, low = _best(points, lowest=True)
    rebound = trend.end - low
    is_rebound = trend.end >= REBOUND_FACTOR * low and rebound >= REBOUND_NATS
    if is_rebound and rebound >= CERTAIN * noise * _window_error(len(values)):
        text = f"The training loss fell to {_n(low)} at step {low_step}, then rose to"
        return HealthState.DIVERGED, f"{text} {_n(trend.end)}."
    fell = f"The training loss fell {_from_to(trend)}"
    if valid and trend.change < 0:
        (best_step, best), (last_step, last) = min(valid, key=lambda p: p[1]), valid[-1]
        if last - best >= max(OVERFIT_SHARE * best, OVERFIT_NATS):
            return HealthState.OVERFITTING, (
                f"{fell}, but the validation loss rose from {_n(best)} at step {best_step} to "
                f"{_n(last)} at step {last_step}."
            )
    if trend.errors <= -CERTAIN and -trend.change >= NOTICEABLE_SHARE * trend.start:
        peak = max(values)
        spike = f" after a peak of {_n(peak)}" if peak >= PEAK_FACTOR * trend.start else ""
        if not valid:
            return HealthState.LEARNING, f"{fell}{spike}; there is no validation loss."
        return HealthState.LEARNING, f"{fell}{spike}, the validation loss is {_n(valid[-1][1])}."
    return _flat_loss(trend, curves)


def _flat_loss(trend: _Trend, curves: Curves) -> _Verdict:
    lost = [value for _, value in _finite(curves.get("updates_lost_fraction", ()))]
    if lost and fmean(lost) >= LOST_SHARE:
        return HealthState.BARELY_MOVED, (
            f"The training loss went {_from_to(trend)}: {fmean(lost):.0%} of the weight updates "
            "were rounded away."
        )
    if trend.hidden < USEFUL_SHARE * abs(trend.start):
        return HealthState.BARELY_MOVED, f"The training loss hardly changed, {_from_to(trend)}."
    return HealthState.UNCLEAR, (
        f"The training loss went {_from_to(trend)}; the noise between steps may hide a change of "
        f"{_n(trend.hidden)}."
    )


def _peak(points: Sequence[tuple[int, float]]) -> _Verdict | None:
    """Recognise a loss that rose far above its start and, at the end of the run, is not below 90 %
    of its start (RECOVERED)."""
    values = [value for _, value in points]
    if len(values) < 2:
        return None
    tenth, smooth, certain = max(1, len(values) // 10), values, 0.0
    # The rise may begin at the second step, so a start over several points could contain it.
    start = min(fmean(values[:window]) for window in range(1, tenth + 1))
    end = fmean(values[-tenth:])
    if len(values) >= MIN_POINTS:
        # One odd batch does not count as a divergence, so longer curves are smoothed by medians of
        # three points.
        smooth = [median(values[max(0, at - 1) : at + 2]) for at in range(len(values))]
        certain = 2 * CERTAIN * _noise(values)  # both ends may be extreme noise
    peak = max(smooth)
    rise = peak - start
    if peak < PEAK_FACTOR * start or rise < max(PEAK_NATS, certain) or end < RECOVERED * start:
        return None
    ended = "" if end >= peak else f" and is now {_n(end)}"
    step = points[smooth.index(peak)][0]
    text = f"The training loss rose from {_n(start)} to {_n(peak)} at step {step}{ended}."
    return HealthState.DIVERGED, text


def _reinforcement(curves: Curves) -> _Verdict:
    if nan := _nan(curves.get("train_loss", ())):
        return nan
    points, valid = _finite(curves["reward"]), _finite(curves.get("valid_reward", ()))
    values = [value for _, value in points]
    enough = len(values) >= MIN_POINTS
    spreads = [value for _, value in _finite(curves.get("reward_std", ()))]
    spread = fmean(spreads) if spreads else 0.0
    trend = _trend(values) if enough else None
    rose = trend is not None and trend.errors >= CERTAIN
    equal = _equal_share(curves, spreads)
    if equal is not None and equal >= EQUAL_SHARE and not rose:
        mean = fmean(values) if values else 0.0
        return HealthState.NO_REWARD_SPREAD, (
            f"{equal:.0%} of the groups had equal rewards (mean {_n(mean)}), which give no "
            "learning signal."
        )
    if trend is None:
        return HealthState.UNCLEAR, _too_few(len(values), "reward")
    noise = _noise(values)
    if trend.errors <= -CERTAIN and -trend.change >= COLLAPSE_SPREAD * spread:
        return HealthState.DIVERGED, f"The mean reward fell {_from_to(trend)}."
    best_step, best = _best(points, lowest=False)
    drop = best - trend.end
    certain_drop = drop >= CERTAIN * noise * _window_error(len(values))
    if certain_drop and drop >= max(COLLAPSE_SPREAD * spread, (best - trend.start) / 2):
        return HealthState.DIVERGED, (
            f"The mean reward reached {_n(best)} at step {best_step}, then fell to {_n(trend.end)}."
        )
    if rose and trend.change >= NOTICEABLE_SPREAD * spread:
        text = f"The mean reward rose {_from_to(trend)}"
        if not valid:
            return HealthState.LEARNING, f"{text}; there is no validation reward."
        (top_step, top), (last_step, last) = max(valid, key=lambda p: p[1]), valid[-1]
        if spread and top - last >= COLLAPSE_SPREAD * spread:
            return HealthState.OVERFITTING, (
                f"{text}, but the validation reward fell from {_n(top)} at step {top_step} to "
                f"{_n(last)} at step {last_step}."
            )
        return HealthState.LEARNING, f"{text}, the validation reward is {_n(last)}."
    if trend.hidden < USEFUL_SPREAD * spread:
        return HealthState.BARELY_MOVED, f"The mean reward hardly changed, {_from_to(trend)}."
    return HealthState.UNCLEAR, (
        f"The mean reward went {_from_to(trend)}; the noise between steps may hide a change of "
        f"{_n(trend.hidden)}."
    )


def _equal_share(curves: Curves, spreads: Sequence[float]) -> float | None:
    """Return the share of groups with equal rewards, averaged over the steps; None if it is
    unknown."""
    shares = [value for _, value in _finite(curves.get("frac_reward_zero_std", ()))]
    if shares:
        return fmean(shares)
    return 1.0 if spreads and max(spreads) == 0 else None


def _nan(points: Sequence[Point]) -> _Verdict | None:
    count = sum(point.missing for point in points)
    if not points or (count < NAN_STEPS and points[-1].value is not None):
        return None
    first = next(point.step for point in points if point.missing)
    return HealthState.DIVERGED, f"The training loss became NaN at step {first}."


def _finite(points: Sequence[Point]) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in points if point.value is not None]


def _noise(values: Sequence[float]) -> float:
    """Estimate the standard deviation of the noise in `values`. A wrong estimate is usually too
    large.

    The estimate uses second differences, because a steady trend does not affect them. Two estimates
    are made, and the larger one counts. The first estimate is the median over the whole curve; a
    fast fall at the start does not affect it. The second estimate is a high quantile over the
    second half of the curve; a few unusual batches do not affect it.
    """
    bends = [values[at - 1] - 2 * values[at] + values[at + 1] for at in range(1, len(values) - 1)]
    of_normal = 0.6745 * math.sqrt(6)  # median of |second difference| of standard normal noise
    whole = median(map(abs, bends)) / of_normal
    half = sorted(map(abs, bends[len(bends) // 2 :]))
    late = half[math.ceil(0.8 * (len(half) - 1))] / (1.2816 * math.sqrt(6))  # its 80 % quantile
    floor = 1e-6 * max(abs(value) for value in values) + 1e-12
    return max(whole, late, floor) * (1 + FEW_POINTS / len(values))


def _trend(values: Sequence[float]) -> _Trend:
    """Compare the mean of the curve's last quarter with the mean of the points at its start. A loss
    may fall within a few steps or slowly. Therefore, starts of several lengths are tried, and the
    most certain change counts."""
    noise, last = _noise(values), len(values) // 4
    end = fmean(values[-last:])
    window, trends = max(1, len(values) // 32), []
    while window <= last:
        start = fmean(values[:window])
        error = noise * math.sqrt(1 / window + 1 / last)
        hidden = abs(end - start) + POSSIBLE * error
        trends.append(_Trend(start=start, end=end, errors=(end - start) / error, hidden=hidden))
        window *= 2
    strongest = max(trends, key=lambda trend: abs(trend.errors))
    # With the widest window, the noise hides the least.
    return _Trend(start=strongest.start, end=end, errors=strongest.errors, hidden=trends[-1].hidden)


def _best(points: Sequence[tuple[int, float]], *, lowest: bool) -> tuple[int, float]:
    """Return the middle step and the mean of the window with the lowest (or highest) mean. A window
    has a tenth of the points."""
    width = max(2, len(points) // 10)
    means = [
        (points[at + width // 2][0], fmean(value for _, value in points[at : at + width]))
        for at in range(len(points) - width + 1)
    ]
    return (min if lowest else max)(means, key=lambda mean: mean[1])


def _window_error(count: int) -> float:
    """Return the standard error of the difference between two means of a curve, divided by the
    standard deviation of the noise. The first mean is that of the last quarter; the second mean is
    that of the window that `_best` finds."""
    return math.sqrt(1 / max(2, count // 10) + 1 / (count // 4))


def _too_few(count: int, metric: str) -> str:
    if count == 0:
        return f"No step has logged a {metric}."
    steps = "step has" if count == 1 else "steps have"
    return f"Only {count} {steps} logged a {metric}; a trend needs {MIN_POINTS}."


def _from_to(trend: _Trend) -> str:
    return f"from {_n(trend.start)} to {_n(trend.end)}"


def _n(value: float) -> str:
    return f"{value:.3g}"
