"""Choose the memory policy: activation mode of each layer, and number of parts of a micro-batch.

The planner picks the cheapest policy that fits into free memory. This module does not need torch,
because the caller measures the free memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from .estimate import Correction, Policy, Prediction, predict
from .shapes import Engine, MicroBatch, ModelShape, Tuning

GradientCheckpointing = bool | Literal["offload", "auto"]
"""Value of recipe.gradient_checkpointing."""

SAFETY = {False: 0.6, True: 0.9}
"""Fraction of free memory that a step may use.

The key is True for a GPU and False for a CPU. The fraction is lower for a CPU, because some memory
predictions for a CPU were up to 23 % too low (docs/reference/performance.md). Other programs also
allocate host memory, and Linux kills a process that uses too much memory.
"""
_PLENTY = 1 << 60
MIN_OFFLOADED_TOKENS = 512
"""Layer inputs with fewer tokens are not offloaded, because copying them would take longer than
recomputing the layer."""
_FIXED_TOKENS = {False: 32, True: 1024}
"""Assumed fixed time of each forward and backward pass, in addition to the time for its tokens. The
unit is the time for one token. The key is True for a GPU and False for a CPU."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Measured speed of the device."""

    flops: float
    """Matrix-multiplication throughput in FLOP per second."""
    host_bandwidth: float
    """Bandwidth of copies between pinned host memory and the device, in bytes per second."""


@dataclass(frozen=True, kw_only=True)
class FreeMemory:
    """Free memory of the device and of the host, and the memory budget of a training step."""

    free: int
    """Free bytes on the device, including the memory that this process already holds."""
    host_free: int
    """Free bytes of host memory, for pinned buffers."""
    on_gpu: bool

    @property
    def budget(self) -> int:
        """Bytes that a training step may use."""
        return int(self.free * SAFETY[self.on_gpu])


@dataclass(frozen=True, kw_only=True)
class Option:
    """A memory policy with its predicted memory and step time."""

    name: str
    policy: Policy
    prediction: Prediction
    cost: float
    """Predicted step time divided by the step time of an unsplit micro-batch that keeps all
    activations."""
    fits: bool


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Finds memory policies for one model, one set of trained parameters and one size of
    micro-batch."""

    shape: ModelShape
    tuning: Tuning
    batch: MicroBatch
    """Largest micro-batch, before splitting."""
    engine: Engine
    memory: FreeMemory
    checkpointing: GradientCheckpointing = "auto"
    may_split: bool = True
    """True to split micro-batches when splitting is cheaper than recomputing activations.

    If `may_split` is False, micro-batches are split only when no other policy fits.
    """
    speed: Speed | None = None
    correction: Correction = field(default_factory=Correction)
    can_recompute: bool = True
    """True if all layers of `shape` support recomputation."""

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
        """Return the cheapest option that fits into memory; if none fits, return the option with
        the lowest peak."""
        fitting = [option for parts in self._parts() if (option := self._best(parts)).fits]
        if not self.may_split and fitting:
            return fitting[0]
        if fitting:
            return min(fitting, key=lambda option: (round(option.cost, 6), option.policy.parts))
        return self._best(self._parts()[-1])

    @property
    def is_short(self) -> bool:
        """True if the policy that would be best with unlimited memory does not fit into free
        memory."""
        roomy = replace(self.memory, free=_PLENTY, host_free=_PLENTY)
        return not self.option(replace(self, memory=roomy).choose().policy).fits

    def alternatives(self) -> list[Option]:
        """Return the options in which all layers have the same activation mode."""
        layers = self.shape.layers
        pure = {"keep": Policy(keep=layers), "recompute": Policy(keep=0)}
        if self.engine.on_gpu:
            pure["offload"] = Policy(keep=0, offload=layers - 1)
        return [self.option(policy, name) for name, policy in pure.items()]

    def after_out_of_memory(self, failed: Policy) -> Policy | None:
        """Return the next policy to try, or None if no policy is left.

        Each call makes one change to the failed policy, to save memory. As long as some layers keep
        their activations, the number of these layers is halved. If no layer keeps its activations,
        the inputs of the layers are offloaded to host memory. If the inputs are already offloaded
        or cannot be offloaded, the micro-batch is split into more parts. If the user has set
        recipe.gradient_checkpointing, each new policy only splits the micro-batch further.
        """
        if self.checkpointing == "auto" and self.can_recompute:
            if failed.keep > 0:
                return replace(failed, keep=failed.keep // 2)
            maximum = self._max_offloaded(failed.parts)
            if self._can_offload(failed.parts) and failed.offload < maximum:
                return replace(failed, offload=maximum)
        larger = [parts for parts in self._parts() if parts > failed.parts]
        return replace(failed, parts=larger[0]) if larger else None

    def cost(self, policy: Policy) -> float:
        """Predicted step time divided by the step time of an unsplit micro-batch that keeps all
        activations."""
        whole = self._step_flops(self.batch)
        part = self.batch.part(policy.parts)
        modes = [policy.mode_of(layer, self.shape.layers) for layer in range(self.shape.layers)]
        recomputed = modes.count("recompute") + modes.count("offload")
        fixed = _FIXED_TOKENS[self.engine.on_gpu] / self.batch.tokens
        cost = (1 + fixed * policy.parts) / (1 + fixed)
        cost += recomputed * self._layer_flops(self.batch) / whole
        if self.speed is not None:
            exposed = max(
                0.0, self._copy_seconds(part) - self._layer_flops(part) / self.speed.flops
            )
            waits = 2 * exposed * modes.count("offload") * policy.parts
            cost += waits * self.speed.flops / whole
        return cost

    def offload_is_free(self, parts: int = 1) -> bool:
        """Return True if copying a layer's input takes no longer than computing the layer."""
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
            maximum = min(layers - keep, self._max_offloaded(parts)) if free else 0
            offload = _smallest(
                maximum, lambda n: self.option(Policy(keep=keep, offload=n, parts=parts)).fits
            )
            return self.option(Policy(keep=keep, offload=offload, parts=parts))

        best = keeping(layers - _smallest(layers, lambda n: keeping(layers - n).fits))
        if not best.fits and self._can_offload(parts):  # slower, but the run does not fail
            offload = self._max_offloaded(parts)
            last = self.option(Policy(keep=0, offload=offload, parts=parts))
            return last if last.fits else best
        return best

    def _max_offloaded(self, parts: int) -> int:
        """Maximum number of offloaded layers, limited by the host's memory.

        The last layer's input is never offloaded, because the backward pass starts with the last
        layer."""
        size = self.batch.part(parts).tokens * self.shape.hidden * self.tuning.stream_bytes
        return min(self.shape.layers - 1, int(self.memory.host_free * SAFETY[False]) // size)

    def _can_offload(self, parts: int) -> bool:
        return self.engine.on_gpu and self.batch.part(parts).tokens >= MIN_OFFLOADED_TOKENS

    def _parts(self) -> list[int]:
        counts = []
        count = 1
        while count < self.batch.rows:
            counts.append(count)
            count *= 2
        return [*counts, self.batch.rows]

    def _layer_flops(self, batch: MicroBatch) -> float:
        return batch.tokens * (2 * self.shape.layer_parameters + 2 * self.shape.q * batch.longest)

    def _step_flops(self, batch: MicroBatch) -> float:
        """Number of FLOP of a forward and backward pass over the whole model. Frozen weights have
        no gradient."""
        head = 2 * self.shape.embedding_parameters * batch.labelled
        forward = self.shape.layers * self._layer_flops(batch) + head
        return (3 if self.tuning.full else 2) * forward

    def _copy_seconds(self, batch: MicroBatch) -> float:
        assert self.speed is not None
        size = batch.tokens * self.shape.hidden * self.tuning.stream_bytes
        return size / self.speed.host_bandwidth


def _smallest(maximum: int, fits: Callable[[int], bool]) -> int:
    """Return the smallest number in 0..maximum for which `fits` is True, else `maximum`.

    `fits` must be monotonic: if n fits, n + 1 fits too.
    """
    low, high = 0, maximum
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return low


def max_tokens(planner: Planner, policy: Policy) -> int:
    """Return the maximum number of tokens of a micro-batch that fits under `policy`; 0 if no
    micro-batch fits.

    All rows are assumed to be as long as the planner's longest row."""
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
    return _smallest(bound, lambda tokens: tokens > 0 and too_many(tokens)) - 1


def rows_and_passes(
    rows: int, passes: int, *, tokens_of: Callable[[int], int], max_tokens: int
) -> tuple[int, int]:
    """Split the rows of a step (`rows * passes`) into equal micro-batches of at most `max_tokens`
    tokens.

    Returns the rows per micro-batch (as many as fit, at least one) and the number of micro-batches.
    `tokens_of(n)` returns the number of tokens, padding included, of a micro-batch with the n
    longest rows."""
    batch = rows * passes
    fitting = [n for n in _divisors(batch) if n == 1 or tokens_of(n) <= max_tokens]
    return max(fitting), batch // max(fitting)


def _divisors(number: int) -> Iterator[int]:
    return (n for n in range(1, number + 1) if number % n == 0)
