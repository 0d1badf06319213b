"""Whether more rows at once would raise tokens per second, from what this run measured by itself.

Micro-batches differ in size, so the run holds the answer: seconds = fixed + rate x slots. Twice the
rows pay the fixed part once instead of twice.
"""

from __future__ import annotations

from tunesmith_schema import Saturation

from .batches import Fit

ENOUGH = 20
"""Micro-batches below which nothing is said."""
SPREAD = 0.05
"""Sizes must differ by this much of their mean (standard deviation) for a line through them."""
WORTH = 0.05
"""A gain below this is saturation."""


def saturation_of(fit: Fit, *, device: str, waits: float | None) -> Saturation:
    """`waits`: share of the steps at whose end the GPU had nothing left to do; None on a CPU."""
    if fit.count < ENOUGH:
        return Saturation(
            state="not_measured", text=f"not measured: {fit.count} micro-batches, {ENOUGH} needed"
        )
    if fit.spread < SPREAD:
        return _of_equal_sizes(fit, waits)
    fixed, error = fit.fixed_seconds()
    low, gain, high = (_doubling(fit, f) for f in (fixed - 2 * error, fixed, fixed + 2 * error))
    part = f"{fixed * 1e3:.1f} +- {2 * error * 1e3:.1f} ms do"
    if fixed < 0:  # the line's, not a time
        part = f"no more than {max(0.0, fixed + 2 * error) * 1e3:.1f} ms do"
    words = (
        f"of {fit.mean_seconds * 1e3:.1f} ms for a micro-batch of {fit.mean_slots:,.0f} slots, "
        f"{part} not depend on its size"
    )
    if fixed >= fit.mean_seconds:  # larger ones took less: no line
        return Saturation(
            state="not_measured",
            text="not measured, the figures vary too much: larger micro-batches took no longer",
        )
    if high < WORTH:
        text = f"{device} already saturated; more rows only add memory: {words}"
        return Saturation(state="saturated", text=text, doubling_gain=round(gain, 4))
    if low > WORTH:
        text = f"twice the rows give about {gain:.0%} more tokens a second: {words}"
        return Saturation(state="not_saturated", text=text, doubling_gain=round(gain, 4))
    return Saturation(
        state="not_measured", text=f"not measured, the figures vary too much: {words}"
    )


def _doubling(fit: Fit, fixed: float) -> float:
    """Tokens a second with twice the slots over those now, less one."""
    twice = max(2 * fit.mean_seconds - fixed, fit.mean_seconds)
    return 2 * fit.mean_seconds / twice - 1


def _of_equal_sizes(fit: Fit, waits: float | None) -> Saturation:
    if waits is not None and waits > 0.5:
        return Saturation(
            state="not_saturated",
            text=f"the GPU had nothing left to do at the end of {waits:.0%} of the steps: more "
            "rows at once give it more (by how much was not measured)",
        )
    return Saturation(
        state="not_measured",
        text=f"not measured: all micro-batches have about {fit.mean_slots:,.0f} slots",
    )
