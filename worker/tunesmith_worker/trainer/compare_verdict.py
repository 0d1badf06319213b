"""Whether our curves equal stock's: in fp32 to rounding, in bf16 as close to the truth as stock.

Pure functions of curves; knows no trainer.

fp32: losses and gradient norms of every step, relative. Both, as Adam sees no factor on a gradient:
a gradient 1 % too large everywhere leaves the losses as they are.

bf16: two runs part by what each rounds, each in its own places: their distance says little. Stock
in fp32 is the truth: ours may lie no farther from it than 1.5 times what stock in bf16 does, as
root mean square over the steps. That tells a fault from rounding only where it is larger; ours in
fp32 against stock in fp32 tells the smaller ones, so it is asked for as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LOSS_LIMIT = 1e-5
"""Sums in another order, grown over some steps."""
NORM_LIMIT = 1e-5
"""Measured: 1e-7 to 2e-6."""
FACTOR = 1.5
FLOOR = {"loss": 1e-4, "gradient norm": 5e-3}
"""bf16 rounding on little data, where stock may be near fp32 by luck: docs/contributing/log."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    losses: list[float]
    grad_norms: list[float]
    """Empty where nothing is clipped: nothing measures them then."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One bound and how it was met."""

    text: str
    passed: bool


def same_in_fp32(stock: Curves, ours: Curves) -> list[Finding]:
    """Every step's loss and gradient norm, relative."""
    return [
        _finding(f"largest relative difference of the {what}", max(_apart(b, a)), limit)
        for what, a, b, limit in (
            ("loss", stock.losses, ours.losses, LOSS_LIMIT),
            ("gradient norm", stock.grad_norms, ours.grad_norms, NORM_LIMIT),
        )
        if a
    ]


def as_close_as_stock(truth: Curves, stock: Curves, ours: Curves) -> list[Finding]:
    """Distances from the truth: ours at most FACTOR times stock's, or times the floor."""
    found = []
    for what, exact, a, b in (
        ("loss", truth.losses, stock.losses, ours.losses),
        ("gradient norm", truth.grad_norms, stock.grad_norms, ours.grad_norms),
    ):
        if exact:
            own = _rms(_apart(a, exact))
            text = f"bf16's distance of the {what} from stock in fp32: stock {own:.1e}, ours"
            found.append(_finding(text, _rms(_apart(b, exact)), FACTOR * max(own, FLOOR[what])))
    return found


def _finding(text: str, value: float, limit: float) -> Finding:
    passed = value <= limit
    return Finding(
        text=f"{text} {value:.1e} ({'within' if passed else 'MORE THAN'} {limit:.1e})",
        passed=passed,
    )


def _apart(values: Sequence[float], exact: Sequence[float]) -> list[float]:
    """Relative; infinite where a value is no number, which is close to nothing."""
    apart = [abs(a - b) / max(abs(b), 1e-12) for a, b in zip(values, exact, strict=True)]
    return [math.inf if math.isnan(one) else one for one in apart]


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(one * one for one in values) / len(values))
