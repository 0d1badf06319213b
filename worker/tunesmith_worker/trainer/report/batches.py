"""What the training batches held, counted on the host, and how the time of a micro-batch grows
with its size.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tunesmith_schema import PhaseName, Saturation

WARM_UP = 3
"""First micro-batches that say nothing of the later ones: allocations, kernels being chosen."""


@dataclass(slots=True)
class Fit:
    """Least squares of seconds = fixed + rate x slots over micro-batches, kept as sums."""

    count: int = 0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0
    _yy: float = 0.0

    def add(self, slots: int, seconds: float) -> None:
        """Welford's update: no difference of large sums."""
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
        """Standard deviation of the slots over their mean."""
        return math.sqrt(self._xx / self.count) / self._x if self.count and self._x else 0.0

    def fixed_seconds(self) -> tuple[float, float]:
        """What a micro-batch costs whatever its size, and the standard error of that."""
        rate = self._xy / self._xx
        fixed = self._y - rate * self._x
        residual = max(0.0, self._yy - rate * self._xy) / (self.count - 2)
        return fixed, math.sqrt(residual * (1 / self.count + self._x**2 / self._xx))


class BatchCounts:
    """Sums over the steps trained so far."""

    def __init__(self, windows: Iterable[int | None]) -> None:
        """`windows`: the reach of each layer's attention in tokens; None where it sees all."""
        self._windows = Counter(windows)
        self.slots = self.tokens = self.micro_batches = 0
        self.pairs = 0.0
        """Sum over layers and rows of twice the pairs of tokens that attention looks at: the
        square of a row's length."""
        self.fit = Fit()
        self._sizes: deque[int] = deque()
        self._forward = 0.0
        self._before = (0, 0)

    def step(self, lengths: Sequence[int]) -> None:
        """An optimiser step on rows of so many tokens begins."""
        self._before = self.slots, self.micro_batches
        self.tokens += sum(lengths)
        self.pairs += sum(
            layers * (n * n if window is None or n <= window else window * (2 * n - window))
            for window, layers in self._windows.items()
            for n in lengths
        )

    def step_again(self, *, in_forward: bool) -> None:
        """The step begins anew, as memory ran out in a micro-batch's forward, or after it."""
        self.slots, self.micro_batches = self._before
        if in_forward:  # its backward will never be told of
            self._sizes.pop()

    def micro_batch(self, slots: int, *, settled: bool) -> None:
        """One of its micro-batches begins. `settled`: in the layout that all later ones have."""
        self.slots += slots
        self.micro_batches += 1
        self._sizes.append(slots if settled and self.micro_batches > WARM_UP else 0)

    def computed(self, phase: str, seconds: float) -> None:
        """A forward or backward pass took `seconds`; they are told of in the order of the run."""
        if phase == PhaseName.FORWARD:
            self._forward = seconds
        elif phase == PhaseName.BACKWARD:
            size = self._sizes.popleft()
            if size:
                self.fit.add(size, self._forward + seconds)


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
