"""The memory of a trainer's steps while it trains: watched, and planned anew when it runs out.

Out of memory in forward or backward loses no step and repeats none: what the step has gathered so
far is dropped, the plan takes less, and the step's micro-batches run again from its start, with its
random numbers. Rows of a micro-batch may be split into parts; the loss is normalised over the whole
step, so the step stays what it was.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import is_out_of_memory
from ..patches.recompute import LayerModes
from ..plan.memory import Policy
from ..plan.shapes import MicroBatch
from .micro_batches import Batch, split

Untyped = Any  # Any: transformers and TRL are not typed

_REMEMBERED = 256
"""Passes whose lengths and times are kept."""


class StepMemory:
    def __init__(
        self, trainer: Untyped, modes: LayerModes, policy: Policy, replan: Callable[[str], Policy]
    ) -> None:
        """`replan`: given what the failure said, the policy to go on with; raises when there is
        none."""
        self._trainer, self.modes = trainer, modes
        self._replan = replan
        self.policy = policy
        self.apply(policy)
        self._batches: list[Batch] = []
        self._done = 0
        self._start: Untyped = None
        self._timed: list[tuple[int, Untyped, Untyped]] = []
        self.largest: MicroBatch | None = None
        """The largest micro-batch so far, after splitting."""

    def apply(self, policy: Policy) -> None:
        layers = len(self.modes.layers)
        self.policy = policy
        self.modes.set([policy.of(layer, layers) for layer in range(layers)])

    def step_begins(self, batches: Sequence[Batch]) -> None:
        """`batches`: the step's micro-batches."""
        self._batches, self._done = list(batches), 0
        self._start = (_random_state(), self._trainer.counters())

    def run(self, run: Callable[[Batch], torch.Tensor], inputs: Batch) -> torch.Tensor:
        """Forward and backward of the step's next micro-batch; its loss."""
        self._batches[self._done] = inputs
        failure = self._again(run, range(self._done, self._done + 1))
        while isinstance(failure, str):
            self.free()
            # The exception is gone, and with it all that its frames held.
            self.apply(self._replan(failure))
            random_state, counters = self._start
            _restore_random_state(random_state)
            self._trainer.restore_counters(counters)
            self._start = (random_state, self._trainer.counters())
            failure = self._again(run, range(self._done + 1))
        self._done += 1
        return failure

    def free(self) -> None:
        """Drop what a failed pass has left."""
        self._trainer.model.zero_grad(set_to_none=True)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def passes(self) -> list[tuple[int, float]]:
        """(tokens, seconds) of the last passes, the first few left out."""
        if not self._timed:
            return []
        if isinstance(self._timed[-1][2], torch.cuda.Event):
            self._timed[-1][2].synchronize()
            return [(n, a.elapsed_time(b) / 1000) for n, a, b in self._timed[3:]]
        return [(n, b - a) for n, a, b in self._timed[3:]]

    def _again(
        self, run: Callable[[Batch], torch.Tensor], numbers: Sequence[int]
    ) -> torch.Tensor | str:
        """The last one's loss, or what the failure says."""
        try:
            for number in numbers:
                loss = self._pass(run, self._batches[number])
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return str(error).partition("\n")[0] or type(error).__name__
        return loss

    def _pass(self, run: Callable[[Batch], torch.Tensor], batch: Batch) -> torch.Tensor:
        parts = split(batch, self.policy.parts) if self.policy.parts > 1 else [batch]
        losses = []
        for part in parts:
            size = describe(part)
            begun = self._now()
            losses.append(run(part))
            self._timed.append((size.tokens, begun, self._now()))
            if self.largest is None or size.tokens > self.largest.tokens:
                self.largest = size
        del self._timed[3:-_REMEMBERED]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _now(self) -> Untyped:
        """A moment of the device, for which nobody waits."""
        if not torch.cuda.is_available():
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def describe(batch: Batch, *, count_labels: bool = False) -> MicroBatch:
    """Counting labels waits for the device; without it every position counts as labelled."""
    rows, longest = (int(size) for size in batch["input_ids"].shape)
    tokens, padded = rows * longest, True
    if "cu_seq_lens_q" in batch:
        rows, longest, padded = len(batch["cu_seq_lens_q"]) - 1, int(batch["max_length_q"]), False
    labelled = int((batch["labels"][:, 1:] != -100).sum()) if count_labels else tokens
    return MicroBatch(
        rows=rows, longest=longest, tokens=tokens, labelled=max(1, labelled), padded=padded
    )


def _random_state() -> Untyped:
    on_gpu = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return torch.get_rng_state(), on_gpu


def _restore_random_state(state: Untyped) -> None:
    on_cpu, on_gpu = state
    torch.set_rng_state(on_cpu)
    if on_gpu is not None:
        torch.cuda.set_rng_state(on_gpu)
