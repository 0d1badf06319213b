"""The memory of a trainer's steps while it trains: watched, and planned anew when it runs out.

Out of memory in forward or backward loses no step and repeats none: what the step has gathered so
far is dropped, the plan takes less, and the step runs again from its start, with its random
numbers. So it does when a layer cannot be compiled, or a layout that is only tried runs out of
memory: the step then takes another layout. Micro-batches may get smaller and more; the loss is
normalised over the whole step, so the step stays what it was.

The optimiser's state is made before the first step: what does not fit beside it shows in that
step, and an update finds all it needs, so that none stops halfway.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_worker.engine.optimizers.fresh_state import make_state
from tunesmith_worker.engine.patches import is_compile_error
from tunesmith_worker.engine.random_state import random_state, restore_random_state
from tunesmith_worker.rundir.errors import RunError, is_out_of_memory

from .estimate import Mode, Policy
from .recompute import LayerModes
from .shapes import MicroBatch

Untyped = Any  # Any: transformers and TRL are not typed
Batch = Mapping[str, Any]  # Any: tensors, and numbers of TRL's padding-free collator
T = TypeVar("T")


class StepRetry:
    def __init__(
        self, trainer: Untyped, modes: LayerModes, policy: Policy, replan: Callable[[str], Policy]
    ) -> None:
        """`replan`: given what the failure said, the policy to go on with; raises when there is
        none."""
        self._trainer, self.modes = trainer, modes
        self._replan = replan
        self.planned: list[Mode] = []
        """Of each layer; the same list when the plan changes."""
        self.largest: MicroBatch | None = None
        """The largest micro-batch so far."""
        self._has_state = False
        self.apply(policy)

    def apply(self, policy: Policy) -> None:
        self.policy = policy
        layers = len(self.modes.layers)
        self.planned[:] = [policy.mode_of(layer, layers) for layer in range(layers)]
        self.modes.set(self.planned)

    def run(self, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Forward and backward of an optimiser step, from its start if need be; its loss."""
        if not self._has_state:
            self._make_optimizer_state()
        state = random_state()
        while True:
            counters = self._trainer.counters()
            found = self._tried(step)
            if not isinstance(found, str):
                return found
            # The exception is gone, and with it all that its frames held.
            self.recover(found)
            restore_random_state(state)
            self._trainer.restore_counters(counters)

    def recover(self, failure: str) -> None:
        """Drop what a failed pass has left, and plan anew."""
        self._trainer.model.zero_grad(set_to_none=True)
        release_cached_memory()
        self.apply(self._replan(failure))

    def _make_optimizer_state(self) -> None:
        """Once more after a failure, with all that is free given back: there is nothing yet that
        could take less. Raises RunError where that does not do."""
        for last in (False, True):
            failure = self._tried(lambda: make_state(self._trainer.optimizer))
            if not isinstance(failure, str):
                self._has_state = True
                return
            if last:
                break
            release_cached_memory()
        raise RunError(
            ErrorCode.OUT_OF_MEMORY,
            f"Out of memory for the optimiser's state, before the first update: {failure}",
            category=ErrorCategory.OUT_OF_MEMORY,
            hint="No batch is small enough for that. Use a smaller model, LoRA instead of full "
            "tuning, or for full tuning recipe.precision='bf16_sr8'.",
        )

    def observe(self, batch: Batch) -> None:
        """A micro-batch, before it is computed."""
        size: MicroBatch = self._trainer.describe(batch)
        if self.largest is None or size.tokens > self.largest.tokens:
            self.largest = size

    @staticmethod
    def _tried(step: Callable[[], T]) -> T | str:
        """What it gives, or what the failure says."""
        try:
            return step()
        except Exception as error:  # torch raises these two kinds as many types; others go on
            if not is_out_of_memory(error) and not is_compile_error(error):
                raise
            return first_line(error)


class EvaluationRetry:
    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.parts = 1
        """Into how many an evaluation's batches are split."""

    def run(self, evaluate: Callable[[int], T], *, rows: int, restore: Callable[[], None]) -> T:
        """`evaluate` takes a batch of `rows` rows in so many parts; `restore` undoes what it has
        counted before it failed. Raises RunError where one row at a time does not fit."""
        while True:
            found = self._tried(evaluate)
            if not isinstance(found, _Failure):
                return found
            # The exception is gone, and with it all that its frames held.
            release_cached_memory()
            restore()
            if self.parts >= rows:
                raise RunError(
                    ErrorCode.OUT_OF_MEMORY,
                    f"Out of memory in an evaluation with one row at a time: {found.text}",
                    category=ErrorCategory.OUT_OF_MEMORY,
                    hint="Leave out the validation file's longest rows, or set a lower "
                    "recipe.max_seq_length.",
                )
            self.parts = min(rows, 2 * self.parts)
            self._tell(
                f"Out of memory in an evaluation ({found.text}): its batches are taken in "
                f"{self.parts} parts. Its loss stays that of the whole file."
            )

    def _tried(self, evaluate: Callable[[int], T]) -> T | _Failure:
        try:
            return evaluate(self.parts)
        except Exception as error:  # out of memory comes as many types; others go on
            if not is_out_of_memory(error):
                raise
            return _Failure(first_line(error))


class _Failure:
    def __init__(self, text: str) -> None:
        self.text = text


def release_cached_memory() -> None:
    """Of what nothing refers to any more, and of what torch keeps for later."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def first_line(error: Exception) -> str:
    """And the second, where the first ends in a colon."""
    first, *rest = str(error).splitlines() or [type(error).__name__]
    return f"{first} {rest[0]}" if first.endswith(":") and rest else first


def micro_batch_of(batch: Batch, *, count_labels: bool = False) -> MicroBatch:
    """Counting labels waits for the device; without it every position counts as labelled."""
    rows, longest = (int(size) for size in batch["input_ids"].shape)
    tokens, padded = rows * longest, True
    if "cu_seq_lens_q" in batch:
        rows, longest, padded = len(batch["cu_seq_lens_q"]) - 1, int(batch["max_length_q"]), False
    labelled = int((batch["labels"][:, 1:] != -100).sum()) if count_labels else tokens
    return MicroBatch(
        rows=rows, longest=longest, tokens=tokens, labelled=max(1, labelled), padded=padded
    )
