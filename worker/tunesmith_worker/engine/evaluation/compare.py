"""Compare two models on the same rows: paired bootstrap confidence interval and verdict.

The difference of two models on n rows is `d = sum(x) / sum(w)`; each row has one x and one w. To
compare losses, x is the row's loss under the second model minus the row's loss under the first
model, in nats. w is the row's number of answer tokens. With this x and w, d is the difference of
the losses per token. To compare the scores that graders give, x is the first model's score on the
row minus the second model's score, and w is 1.

The bootstrap samples n rows with replacement, RESAMPLES times, computes d for each sample, and
takes quantiles of the RESAMPLES values (Efron and Tibshirani, An Introduction to the Bootstrap,
1993, chapter 13). For a confidence level of 1 - alpha, these quantiles are alpha/2 and 1 - alpha/2.
If n is small, the interval between these two quantiles is too narrow. We use the expanded
percentile interval (Hesterberg, What Teachers Should Know about the Bootstrap, 2015,
https://doi.org/10.1080/00031305.2015.1089789). For the expanded percentile interval, alpha/2 is
replaced by `Phi(-sqrt(n / (n - 1)) t)`, where t is the 1 - alpha/2 quantile of Student's t
distribution with n - 1 degrees of freedom. If the differences are normal, the expanded interval is
as wide as a t interval.

If two models are equal and alpha = 0.01, each model is found better by chance in about 0.5 % of all
comparisons. A difference below NEGLIGIBLE counts as no difference, even if its interval is narrow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .scores import RowScores

LEVEL = 0.99
"""Probability that all confidence intervals of an evaluation contain their true differences."""
RESAMPLES = 10_000
LEAST_ROWS = 8
"""Least number of rows for a verdict. With fewer rows, an interval can exclude 0 by chance."""
NEGLIGIBLE = 1e-3
"""Largest difference that counts as no difference. A loss difference of 0.001 nats changes the
perplexity by 0.1 %."""
_AT_ONCE = 1 << 20
"""Number of resampled rows that are in memory at the same time."""

Outcome = Literal["better", "worse", "no_difference"]
Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Difference of two models; positive if the first model is better."""

    value: float
    low: float
    high: float
    """Bounds of the confidence interval."""
    level: float
    rows: int

    @property
    def margin(self) -> float:
        """Half of the confidence interval's width."""
        return (self.high - self.low) / 2

    @property
    def outcome(self) -> Outcome:
        if self.rows < LEAST_ROWS:
            return "no_difference"
        if abs(self.value) <= NEGLIGIBLE:
            return "no_difference"
        if not math.isfinite(self.value):
            return "better" if self.value > 0 else "worse"
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "no_difference"


def compare_losses(first: RowScores, second: RowScores, *, seed: int, of: int = 1) -> Difference:
    """Compare the losses per token of two models on the same rows; see `compare`.

    If only one model has a finite loss, this model is better by an infinite difference."""
    if len(first) != len(second) or (first.tokens != second.tokens).any():
        raise ValueError("the models were scored on different rows")
    gain = second.nll - first.nll
    finite = math.isfinite(first.loss), math.isfinite(second.loss)
    if not all(finite):
        value = math.inf if finite[0] else -math.inf if finite[1] else 0.0
        level = 1 - (1 - LEVEL) / of
        return Difference(value=value, low=value, high=value, level=level, rows=len(first))
    return compare(gain, first.tokens.astype(np.float64), seed=seed, of=of)


def compare(gains: Values, weights: Values | None = None, *, seed: int, of: int = 1) -> Difference:
    """Return `sum(gains) / sum(weights)` with its confidence interval.

    `gains`: advantage of the first model on each row, [n]. `weights`: weight of each row, [n]; None
    gives every row the weight 1. `seed`: seed of the resampling. `of`: number of comparisons in the
    evaluation. The confidence level of each interval is 1 - (1 - LEVEL) / of (Bonferroni).
    Therefore, all intervals together contain their true differences with probability LEVEL. Raises
    ValueError without rows."""
    n = len(gains)
    if n == 0:
        raise ValueError("there are no rows to compare")
    weights = np.ones(n) if weights is None else weights
    level = 1 - (1 - LEVEL) / of
    value = float(gains.sum() / weights.sum())
    if n == 1:
        return Difference(value=value, low=-math.inf, high=math.inf, level=level, rows=n)
    tail = _expanded_tail(n, level)
    low, high = np.quantile(_resampled(gains, weights, seed), [tail, 1 - tail])
    return Difference(value=value, low=float(low), high=float(high), level=level, rows=n)


def _expanded_tail(n: int, level: float) -> float:
    return NormalDist().cdf(-math.sqrt(n / (n - 1)) * t_quantile((1 + level) / 2, n - 1))


@cache
def t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution for a probability from 0.5 to 1.

    The function finds the quantile by bisection on the integral of the density. The integral is
    computed over u, where `t = sqrt(freedom) tan(u)` and the density of u is proportional to
    `cos(u) ** (freedom - 1)`.
    """
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2

    def above_median(angle: float) -> float:
        angles = np.linspace(0.0, angle, 4001)
        return math.exp(log_scale) * float(np.trapezoid(np.cos(angles) ** (freedom - 1), angles))

    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if above_median(middle) < probability - 0.5 else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _resampled(gains: Values, weights: Values, seed: int) -> Values:
    generator, n = np.random.default_rng(seed), len(gains)
    size = max(1, _AT_ONCE // n)
    parts = []
    for start in range(0, RESAMPLES, size):
        drawn = generator.integers(n, size=(min(size, RESAMPLES - start), n))
        parts.append(gains[drawn].sum(1) / weights[drawn].sum(1))
    return np.concatenate(parts)


def verdict(difference: Difference, unit: str, rows: str) -> str:
    """Return the verdict in words, such as "better by 0.31 ± 0.05 nats on 80 rows".

    `unit`: unit of the difference. `rows`: plural noun for the rows, such as "training rows"."""
    on = f"on {difference.rows} {rows if difference.rows != 1 else rows.removesuffix('s')}"
    if difference.rows < LEAST_ROWS:
        return f"no difference shown: a verdict needs at least {LEAST_ROWS} {rows}, got " + str(
            difference.rows
        )
    if not math.isfinite(difference.value):
        which = "other model's" if difference.value > 0 else "model's"
        return f"{difference.outcome}: the {which} loss is not finite {on}"
    digits = _digits(difference.margin or abs(difference.value))
    margin = f"± {difference.margin:.{digits}f} {unit} {on}"
    if difference.outcome == "no_difference":
        return f"no difference shown ({difference.value:.{digits}f} {margin})"
    return f"{difference.outcome} by {abs(difference.value):.{digits}f} {margin}"


def _digits(value: float) -> int:
    """Return the number of decimals that are needed to show one significant digit of `value`; at
    least 2."""
    return 2 if value <= 0 else min(8, max(2, -math.floor(math.log10(value))))
