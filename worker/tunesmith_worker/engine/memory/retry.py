"""Retry training steps and evaluations that run out of memory.

When forward or backward runs out of memory, the retry deletes the step's gradients and applies a
memory plan that needs less memory. Then it repeats the step with the same random numbers. Each step
updates the weights exactly once, with or without retries. Smaller micro-batches do not change the
loss, because the loss is normalised over the whole step.

If the run can switch to a batch layout that needs less memory, it first tries this layout with the
same memory plan.

The optimiser state is allocated before the first step, so that no update fails midway.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_worker.engine.optimizers.fresh_state import make_state, state_bytes
from tunesmith_worker.engine.random_state import random_state, restore_random_state
from tunesmith_worker.rundir.errors import RunError, is_out_of_memory

from .estimate import Mode, Policy
from .probe import measure_peak
from .recompute import LayerModes
from .shapes import MicroBatch

Untyped = Any  # Any: transformers and TRL are not typed
Batch = Mapping[str, Any]  # Any: tensors, and numbers of TRL's padding-free collator
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class FirstStep:
    """Tensor memory of the forward and backward passes of a run's first step."""

    largest: MicroBatch
    """Largest micro-batch of the step."""
    growth: int
    """Peak of tensor bytes minus tensor bytes at the start, plus the bytes of the optimiser
    state."""


class StepRetry:
    """Runs a trainer's steps, and applies a smaller memory plan after a failure."""

    def __init__(
        self, trainer: Untyped, modes: LayerModes, policy: Policy, replan: Callable[[str], Policy]
    ) -> None:
        """`replan` takes the failure's message and returns the next policy, or raises RunError if
        none is left."""
        self._trainer, self.modes = trainer, modes
        self._replan = replan
        self.planned: list[Mode] = []
        """Mode of each layer. When the plan changes, this list is changed in place."""
        self.largest: MicroBatch | None = None
        """Largest micro-batch of the run so far."""
        self.first_step: FirstStep | None = None
        """Measurement of the first step on a CPU. None if another profiler is active or if the
        first step ran out of memory. Always None on a GPU, because torch's CUDA allocator measures
        every step."""
        self._has_state = False
        self.apply(policy)

    def apply(self, policy: Policy) -> None:
        self.policy = policy
        layers = len(self.modes.layers)
        self.planned[:] = [policy.mode_of(layer, layers) for layer in range(layers)]
        self.modes.set(self.planned)

    def run(self, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Run the forward and backward passes of an optimiser step, with retries, and return the
        loss."""
        if self._has_state:
            return self._with_retries(step)
        device = self._trainer.args.device
        if device.type == "cuda" or torch.autograd._profiler_enabled():  # type: ignore[attr-defined]  # no nesting
            self._make_optimizer_state()
            return self._with_retries(step)
        policy, resumed = self.policy, state_bytes(self._trainer.optimizer)
        with measure_peak(device, collect=False) as held:
            self._make_optimizer_state()
            loss = self._with_retries(step)
        if self.largest is not None and self.policy is policy:
            self.first_step = FirstStep(largest=self.largest, growth=resumed + held.peak)
        return loss

    def _with_retries(self, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        state = random_state()
        while True:
            counters = self._trainer.counters()
            result = _attempt(step)
            if not isinstance(result, _Failure):
                return result
            # The exception and the tensors in its frames are already released at this point.
            self.recover(result.text)
            restore_random_state(state)
            self._trainer.restore_counters(counters)

    def recover(self, failure: str) -> None:
        """Delete the gradients of a failed pass and apply the next policy."""
        self._trainer.model.zero_grad(set_to_none=True)
        release_cached_memory()
        self.apply(self._replan(failure))

    def _make_optimizer_state(self) -> None:
        """Allocate the optimiser state; on failure, release cached memory and try once more.

        Raises RunError if the second allocation fails."""

        def allocate() -> None:
            make_state(self._trainer.optimizer)

        failure = _attempt(allocate)
        if failure is not None:
            release_cached_memory()
            failure = _attempt(allocate)
        if failure is not None:
            raise RunError(
                ErrorCode.OUT_OF_MEMORY,
                f"Out of memory for the optimiser state, before the first update: {failure.text}",
                category=ErrorCategory.OUT_OF_MEMORY,
                hint="A smaller batch does not help. Use a smaller model, LoRA instead of full "
                "tuning, or for full tuning recipe.precision='bf16_sr8'.",
            )
        self._has_state = True

    def observe(self, batch: Batch) -> None:
        """Record the size of a micro-batch before its forward pass."""
        size: MicroBatch = self._trainer.describe(batch)
        if self.largest is None or size.tokens > self.largest.tokens:
            self.largest = size


class EvaluationRetry:
    """Splits evaluation batches into smaller parts after an out-of-memory failure.

    Splitting a batch changes only the rounding of the loss, because the loss is a sum over
    tokens."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self.parts = 1
        """Number of parts that each evaluation batch is split into."""

    def run(self, evaluate: Callable[[int], T], *, rows: int, restore: Callable[[], None]) -> T:
        """Call `evaluate(parts)` until it succeeds, with twice as many parts after each failure.

        `rows`: number of rows in the batch. `restore` resets the counters that a failed call
        changed. Raises RunError if a single row does not fit."""
        while True:
            result = _attempt(lambda: evaluate(self.parts))
            if not isinstance(result, _Failure):
                return result
            # The exception and the tensors in its frames are already released at this point.
            release_cached_memory()
            restore()
            if self.parts >= rows:
                raise RunError(
                    ErrorCode.OUT_OF_MEMORY,
                    f"Out of memory in an evaluation with one row at a time: {result.text}",
                    category=ErrorCategory.OUT_OF_MEMORY,
                    hint="Remove the longest rows from the validation file, or set a lower "
                    "recipe.max_seq_length.",
                )
            self.parts = min(rows, 2 * self.parts)
            self._warn(
                f"Out of memory in an evaluation ({result.text}): each batch is split into "
                f"{self.parts} parts. The loss still covers the whole validation file."
            )


@dataclass(frozen=True, slots=True)
class _Failure:
    text: str


def _attempt(work: Callable[[], T]) -> T | _Failure:
    try:
        return work()
    except Exception as error:  # out of memory has several types; other errors propagate
        if is_out_of_memory(error):
            return _Failure(first_line(error))
        raise


def release_cached_memory() -> None:
    """Collect garbage, then release the unused memory that torch's CUDA allocator holds."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def first_line(error: Exception) -> str:
    """Return an error's first line; if it ends in a colon, append the second line."""
    first, *rest = str(error).splitlines() or [type(error).__name__]
    return f"{first} {rest[0]}" if first.endswith(":") and rest else first


def micro_batch_of(batch: Batch, *, count_labels: bool = False) -> MicroBatch:
    """Return the size of a batch as a `MicroBatch`. With `count_labels=True`, wait for the device
    and count the labelled positions; otherwise count every position as labelled."""
    rows, longest = (int(size) for size in batch["input_ids"].shape)
    tokens, padded = rows * longest, True
    if "cu_seq_lens_q" in batch:
        rows, longest, padded = len(batch["cu_seq_lens_q"]) - 1, int(batch["max_length_q"]), False
    labelled = int((batch["labels"][:, 1:] != -100).sum()) if count_labels else tokens
    return MicroBatch(
        rows=rows, longest=longest, tokens=tokens, labelled=max(1, labelled), padded=padded
    )
