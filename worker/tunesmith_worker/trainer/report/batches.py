"""Token counts of training batches, and the effect of more rows per micro-batch.

The report fits the time of a micro-batch as seconds = fixed + rate x token positions. With more
rows per micro-batch, a step has fewer micro-batches, so the fixed time of a micro-batch is spent
less often.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tunesmith_schema import PhaseName, Saturation

WARM_UP = 3
"""Number of micro-batches to ignore at the start. The first micro-batches are slow, because memory
is allocated and kernels are selected."""


@dataclass(slots=True)
class Fit:
    """Least-squares estimate of `fixed` and `rate` in: seconds of a micro-batch = fixed + rate x
    its token positions. Only running sums are kept, not the single micro-batches."""

    count: int = 0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0
    _yy: float = 0.0

    def add(self, slots: int, seconds: float) -> None:
        """Add a micro-batch by Welford's update, which avoids numerical cancellation."""
        self.count += 1
        dx, dy = slots - self._x, seconds - self._y
        self._x += dx / self.count
        self._y += dy / self.count
        self._xx += dx * (slots - self._x)
        self._xy += dx * (seconds - self._y)
        self._yy += dy * (seconds - self._y)

    @property
    def mean_slots(self) -> float:
        return self._x

    @property
    def mean_seconds(self) -> float:
        return self._y

    @property
    def spread(self) -> float:
        """Coefficient of variation of the token positions per micro-batch."""
        return math.sqrt(self._xx / self.count) / self._x if self.count and self._x else 0.0

    def fixed_seconds(self) -> tuple[float, float]:
        """Return the estimate of `fixed` and the standard error of this estimate, both in
        seconds."""
        rate = self._xy / self._xx
        fixed = self._y - rate * self._x
        residual = max(0.0, self._yy - rate * self._xy) / (self.count - 2)
        return fixed, math.sqrt(residual * (1 / self.count + self._x**2 / self._xx))


class BatchCounts:
    """Counts of tokens and micro-batches, summed over the trained steps."""

    def __init__(self, windows: Iterable[int | None]) -> None:
        """`windows`: attention window of each layer in tokens; None for full attention."""
        self._windows = Counter(windows)
        self.slots = self.tokens = self.micro_batches = 0
        self.pairs = 0.0
        """Twice the number of attended token pairs, summed over layers and rows. A row of n tokens
        with full causal attention adds n^2 to `pairs` per layer."""
        self.fit = Fit()
        self._sizes: deque[int] = deque()
        self._forward = 0.0
        self._before = (0, 0)

    def step(self, lengths: Sequence[int]) -> None:
        """Count an optimizer step's tokens, at the start of the step.

        `lengths`: row lengths in tokens.
        """
        self._before = self.slots, self.micro_batches
        self.tokens += sum(lengths)
        self.pairs += sum(
            layers * (n * n if window is None or n <= window else window * (2 * n - window))
            for window, layers in self._windows.items()
            for n in lengths
        )

    def restart_step(self, *, in_forward: bool) -> None:
        """Undo the counts of a step that restarts because memory ran out.

        `in_forward`: True if memory ran out in a forward pass.
        """
        self.slots, self.micro_batches = self._before
        if in_forward:  # the backward pass will not run
            self._sizes.pop()

    def micro_batch(self, slots: int) -> None:
        """Count a micro-batch, at the start of the micro-batch."""
        self.slots += slots
        self.micro_batches += 1
        self._sizes.append(slots if self.micro_batches > WARM_UP else 0)

    def computed(self, phase: str, seconds: float) -> None:
        """Record the seconds of a micro-batch's forward or backward pass.

        Call this method in the order in which the passes run.
        """
        if phase == PhaseName.FORWARD:
            self._forward = seconds
        elif phase == PhaseName.BACKWARD:
            size = self._sizes.popleft()
            if size:
                self.fit.add(size, self._forward + seconds)


ENOUGH = 20
"""Minimum number of micro-batches to estimate the time that a micro-batch takes regardless of its
size."""
SPREAD = 0.05
"""Minimum coefficient of variation of the micro-batch sizes; with less variation, the estimate is
not made."""
WORTH = 0.05
"""Minimum relative gain in tokens per second from twice the rows per micro-batch. With a smaller
gain, the device counts as saturated."""


def saturation_of(fit: Fit, *, device: str, waits: float | None) -> Saturation:
    """Return the estimated effect of more rows per micro-batch.

    `waits`: share of the steps that ended with an idle GPU; None on a CPU.
    """
    if fit.count < ENOUGH:
        return Saturation(
            state="not_measured", text=f"not measured: {fit.count} micro-batches, {ENOUGH} needed"
        )
    if fit.spread < SPREAD:
        return _saturation_of_equal_sizes(fit, waits)
    fixed, error = fit.fixed_seconds()
    low, gain, high = (
        _doubling_gain(fit, f) for f in (fixed - 2 * error, fixed, fixed + 2 * error)
    )
    part = f"{fixed * 1e3:.1f} ± {2 * error * 1e3:.1f} ms"
    if fixed < 0:  # the fitted fixed cost is negative
        part = f"at most {max(0.0, fixed + 2 * error) * 1e3:.1f} ms"
    words = (
        f"of the {fit.mean_seconds * 1e3:.1f} ms of a micro-batch "
        f"({fit.mean_slots:,.0f} token positions), {part} do not depend on its size"
    )
    if fixed >= fit.mean_seconds:  # larger micro-batches took less time, so the fit is useless
        return Saturation(
            state="not_measured",
            text="not measured: the times vary too much (larger micro-batches did not take longer)",
        )
    if high < WORTH:
        text = f"{device} is already saturated; more rows would only add memory: {words}"
        return Saturation(state="saturated", text=text, doubling_gain=round(gain, 4))
    if low > WORTH:
        text = f"twice the rows would give about {gain:.0%} more tokens per second: {words}"
        return Saturation(state="not_saturated", text=text, doubling_gain=round(gain, 4))
    return Saturation(state="not_measured", text=f"not measured: the times vary too much; {words}")


def _doubling_gain(fit: Fit, fixed: float) -> float:
    """Return the relative gain in tokens per second with twice the rows per micro-batch."""
    twice = max(2 * fit.mean_seconds - fixed, fit.mean_seconds)
    return 2 * fit.mean_seconds / twice - 1


def _saturation_of_equal_sizes(fit: Fit, waits: float | None) -> Saturation:
    if waits is not None and waits > 0.5:
        return Saturation(
            state="not_saturated",
            text=f"the GPU was idle at the end of {waits:.0%} of the steps: more rows per "
            "micro-batch would give more tokens per second (gain not measured)",
        )
    return Saturation(
        state="not_measured",
        text=f"not measured: all micro-batches have about {fit.mean_slots:,.0f} token positions",
    )
