"""What the training batches held, counted on the host while rows are put together, and how the
time of a micro-batch grows with its size.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunesmith_schema import PhaseName

Example = Mapping[str, Any]  # Any: lists of token ids, or tensors
Collator = Callable[[list[Example]], Any]

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
    """Sums over the training batches handed out so far."""

    def __init__(self, windows: Sequence[int | None]) -> None:
        """`windows`: the reach of each layer's attention in tokens; None where it sees all."""
        self._windows = Counter(windows)
        self._collated: deque[tuple[int, int, float]] = deque()
        self.slots = self.tokens = self.micro_batches = 0
        self.pairs = 0.0
        """Sum over layers and rows of twice the pairs of tokens that attention looks at: the
        square of a row's length."""
        self.fit = Fit()
        self._sizes: deque[int] = deque()
        self._forward = 0.0

    def counting(self, collate: Collator, phase: Callable[[], str]) -> Collator:
        """`collate`, with its batches counted where they are for training."""

        def count_too(examples: list[Example]) -> Any:  # Any: a batch of TRL's
            batch = collate(examples)
            if phase() == PhaseName.DATA_WAIT:
                lengths = [n for example in examples for n in row_lengths(example)]
                self._collated.append(
                    (batch["input_ids"].numel(), sum(lengths), self._pairs(lengths))
                )
            return batch

        return count_too

    def handed_out(self, batches: Sequence[Mapping[str, Any]]) -> None:
        """The next micro-batches of the run. The loader collates one ahead, so counting waits
        until here; rows may have changed places between them, which changes no sum."""
        for batch in batches:
            if self._collated:
                slots, tokens, pairs = self._collated.popleft()
                self.slots += slots
                self.tokens += tokens
                self.pairs += pairs
            self.micro_batches += 1
            self._sizes.append(batch["input_ids"].numel())

    def computed(self, phase: str, seconds: float) -> None:
        """A forward or backward pass took `seconds`; they are told of in the order of the run."""
        if phase == PhaseName.FORWARD:
            self._forward = seconds
        elif phase == PhaseName.BACKWARD and self._sizes:
            size = self._sizes.popleft()
            if self.micro_batches - len(self._sizes) > WARM_UP:
                self.fit.add(size, self._forward + seconds)

    def _pairs(self, lengths: Sequence[int]) -> float:
        return float(
            sum(
                layers * (n * n if window is None or n <= window else window * (2 * n - window))
                for window, layers in self._windows.items()
                for n in lengths
            )
        )


def row_lengths(example: Example) -> list[int]:
    """Tokens of each row in an example: several where rows were packed."""
    packed = example.get("seq_lengths")
    return list(packed) if packed is not None else [len(example["input_ids"])]
