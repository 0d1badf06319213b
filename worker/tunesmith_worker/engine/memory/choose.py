"""Which layers keep, recompute or offload their activations, and into how many parts a micro-batch
is split: the cheapest that fits the memory there is, with what else there was.

Pure arithmetic over engine/memory/estimate.py. How much memory is free is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from .estimate import Correction, Policy, Prediction, predict
from .shapes import Engine, MicroBatch, ModelShape, Tuning

GradientCheckpointing = bool | Literal["offload", "auto"]
"""recipe.gradient_checkpointing."""

SAFETY = {False: 0.6, True: 0.9}
"""Of free memory, by whether it is a GPU's. On a host the trial adds what glibc keeps beyond
tensors and fell short by up to 23 % (docs/reference/performance.md), other programs grow, and the
kernel kills a process that takes too much."""
MIN_OFFLOADED_TOKENS = 512
"""Tokens; below them a GPU waits for its host anyway (engine/memory/offload.py)."""
_FIXED_TOKENS = {False: 32, True: 1024}
"""A pass costs as if it had that many tokens more. Not measured before a run; after it, see
plan/saturation.py."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What the device was measured to do."""

    flops: float
    """Of matrix products, per second."""
    host_bandwidth: float
    """Bytes per second between pinned host memory and the device."""


@dataclass(frozen=True, kw_only=True)
class FreeMemory:
    """Bytes that a training step may take."""

    free: int
    """On the device, what this process holds there already included."""
    host_free: int
    """For pinned memory."""
    on_gpu: bool

    @property
    def budget(self) -> int:
        return int(self.free * SAFETY[self.on_gpu])


@dataclass(frozen=True, kw_only=True)
class Option:
    name: str
    policy: Policy
    prediction: Prediction
    cost: float
    """Predicted time of a step, as a multiple of keeping everything in one part."""
    fits: bool


@dataclass(frozen=True, kw_only=True)
class Planner:
    shape: ModelShape
    tuning: Tuning
    batch: MicroBatch
    """The largest one before it is split."""
    engine: Engine
    memory: FreeMemory
    checkpointing: GradientCheckpointing = "auto"
    may_split: bool = True
    """Whether parts may be preferred to recomputing; without it, only where nothing else fits."""
    speed: Speed | None = None
    correction: Correction = field(default_factory=Correction)
    can_recompute: bool = True
    """Whether each layer of `shape` is one that can."""

    def option(self, policy: Policy, name: str = "chosen") -> Option:
        prediction = predict(
            self.shape, self.tuning, self.batch, self.engine, policy, self.correction
        )
        return Option(
            name=name,
            policy=policy,
            prediction=prediction,
            cost=self.cost(policy),
            fits=prediction.peak <= self.memory.budget
            and prediction.pinned_host <= self.memory.host_free * SAFETY[False],
        )

    def choose(self) -> Option:
        """The cheapest that fits; where none does, the one that takes least."""
        fitting = [one for parts in self._parts() if (one := self._best(parts)).fits]
        if not self.may_split and fitting:
            return fitting[0]
        if fitting:
            return min(fitting, key=lambda one: (round(one.cost, 6), one.policy.parts))
        return self._best(self._parts()[-1])

    def alternatives(self) -> list[Option]:
        """The three pure ones, as they would be."""
        layers = self.shape.layers
        pure = {"keep": Policy(keep=layers), "recompute": Policy(keep=0)}
        if self.engine.on_gpu:
            pure["offload"] = Policy(keep=0, offload=layers - 1)
        return [self.option(policy, name) for name, policy in pure.items()]

    def after_out_of_memory(self, failed: Policy) -> Policy | None:
        """What to try next: more layers recomputed (half of those that keep), then offload, then
        smaller parts; None when there is nothing left. What the user has set stays, but parts."""
        if self.checkpointing == "auto" and self.can_recompute:
            if failed.keep > 0:
                return replace(failed, keep=failed.keep // 2)
            most = self._most_offloaded(failed.parts)
            if self._can_offload(failed.parts) and failed.offload < most:
                return replace(failed, offload=most)
        larger = [parts for parts in self._parts() if parts > failed.parts]
        return replace(failed, parts=larger[0]) if larger else None

    def cost(self, policy: Policy) -> float:
        whole = self._step_flops(self.batch)
        part = self.batch.part(policy.parts)
        counts = [policy.mode_of(layer, self.shape.layers) for layer in range(self.shape.layers)]
        again = counts.count("recompute") + counts.count("offload")
        fixed = _FIXED_TOKENS[self.engine.on_gpu] / self.batch.tokens
        cost = (1 + fixed * policy.parts) / (1 + fixed)
        cost += again * self._layer_flops(self.batch) / whole
        if self.speed is not None:
            exposed = max(
                0.0, self._copy_seconds(part) - self._layer_flops(part) / self.speed.flops
            )
            waits = 2 * exposed * counts.count("offload") * policy.parts
            cost += waits * self.speed.flops / whole
        return cost

    def offload_is_free(self, parts: int = 1) -> bool:
        """Whether copying a layer's input takes no longer than computing the layer."""
        part = self.batch.part(parts)
        if self.speed is None or part.tokens < MIN_OFFLOADED_TOKENS:
            return False
        return self._copy_seconds(part) <= self._layer_flops(part) / self.speed.flops

    def _best(self, parts: int) -> Option:
        layers = self.shape.layers
        if self.checkpointing is False or not self.can_recompute:
            return self.option(Policy(keep=layers, parts=parts))
        if self.checkpointing == "offload":
            offload = layers - 1 if self.engine.on_gpu else 0
            return self.option(Policy(keep=0, offload=offload, parts=parts))
        if self.checkpointing is True:
            return self.option(Policy(keep=0, parts=parts))
        free = self.offload_is_free(parts)

        def keeping(keep: int) -> Option:
            most = min(layers - keep, self._most_offloaded(parts)) if free else 0
            offload = _least(most, lambda m: self.option(_of(keep, m, parts)).fits)
            return self.option(_of(keep, offload, parts))

        found = keeping(layers - _least(layers, lambda n: keeping(layers - n).fits))
        if not found.fits and self._can_offload(parts):  # costs time, but not the run
            last = self.option(_of(0, self._most_offloaded(parts), parts))
            return last if last.fits else found
        return found

    def _most_offloaded(self, parts: int) -> int:
        """All layers but the last, whose input is wanted at once, if the host has room."""
        size = self.batch.part(parts).tokens * self.shape.hidden * self.tuning.stream_bytes
        return min(self.shape.layers - 1, int(self.memory.host_free * SAFETY[False]) // size)

    def _can_offload(self, parts: int) -> bool:
        return self.engine.on_gpu and self.batch.part(parts).tokens >= MIN_OFFLOADED_TOKENS

    def _parts(self) -> list[int]:
        """1, 2, 4, ... and one row each."""
        parts = []
        one = 1
        while one < self.batch.rows:
            parts.append(one)
            one *= 2
        return [*parts, self.batch.rows]

    def _layer_flops(self, batch: MicroBatch) -> float:
        """Of one layer's forward: 2 for each weight and token, and causal attention."""
        return batch.tokens * (2 * self.shape.layer_parameters + 2 * self.shape.q * batch.longest)

    def _step_flops(self, batch: MicroBatch) -> float:
        """Forward and backward; a frozen weight has no gradient of its own."""
        head = 2 * self.shape.embedding_parameters * batch.labelled
        forward = self.shape.layers * self._layer_flops(batch) + head
        return (3 if self.tuning.full else 2) * forward

    def _copy_seconds(self, batch: MicroBatch) -> float:
        assert self.speed is not None
        size = batch.tokens * self.shape.hidden * self.tuning.stream_bytes
        return size / self.speed.host_bandwidth


def _of(keep: int, offload: int, parts: int) -> Policy:
    return Policy(keep=keep, offload=offload, parts=parts)


def _least(most: int, fits: Callable[[int], bool]) -> int:
    """The least number in 0..most that fits, where larger ones fit as well; `most` if none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return low


def max_tokens(planner: Planner, policy: Policy) -> int:
    """The most tokens a micro-batch may have under `policy`, rows of the planner's longest; 0 when
    not even one token fits."""
    longest = planner.batch.longest

    def too_many(tokens: int) -> bool:
        rows = max(1, -(-tokens // longest))
        batch = replace(
            planner.batch,
            rows=rows,
            longest=min(longest, tokens),
            tokens=tokens,
            labelled=tokens,
        )
        return not replace(planner, batch=batch).option(replace(policy, parts=1)).fits

    bound = 1
    while bound < 1 << 24 and not too_many(bound):
        bound *= 2
    return _least(bound, lambda tokens: tokens > 0 and too_many(tokens)) - 1


def rows_and_passes(
    rows: int, passes: int, *, tokens_of: Callable[[int], int], max_tokens: int
) -> tuple[int, int]:
    """The largest micro-batch of a step of `rows` x `passes` rows that has at most `max_tokens`
    (at least one row), and how many of them make up the step. `tokens_of(n)`: those of the n
    longest rows, as they would be computed."""
    batch = rows * passes
    fitting = [n for n in _divisors(batch) if n == 1 or tokens_of(n) <= max_tokens]
    return max(fitting), batch // max(fitting)


def _divisors(number: int) -> Iterator[int]:
    return (n for n in range(1, number + 1) if number % n == 0)
