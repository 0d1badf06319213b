"""Guard that keeps NaN and infinity out of the weights without a device sync in every step.

On the device, the guard checks the gradient norm that clipping has computed. A non-finite norm sets
the flag `found_inf`, and fused optimisers skip every update while the flag is set. The host reads
`found_inf` when the loss is logged. The weights do not change after a step with a non-finite
gradient, so the rows of this step can be rerun to find the cause.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tunesmith_worker.engine.optimizers.split_master import SplitMasterAdamW
from tunesmith_worker.engine.random_state import RandomState
from tunesmith_worker.rundir.errors import RunError

Untyped = Any  # Any: transformers is not typed

MOST_KEPT = 64
"""Maximum number of steps whose rows the host keeps before it reads `found_inf`."""


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """The inputs of one optimiser step."""

    number: int
    """Step number, from 1."""
    rows: dict[str, Untyped]
    """The step's batch: collated by batches.py, or GRPO's batch."""
    layout: Untyped
    """Layout of the micro-batches (auto/layout_choice.py); None for GRPO."""
    labelled: Untyped
    """Number of tokens that the loss is divided by, on the device; None for GRPO."""
    random_state: RandomState
    """Random state before the step."""
    began: float = field(default_factory=time.perf_counter)
    """Start time of the forward passes in seconds, from `time.perf_counter`."""


class NanGuard:
    def __init__(self, device: torch.device, explain: Callable[[StepRecord], RunError]) -> None:
        """`explain`: function that returns the error for a step whose gradient is not finite."""
        self.found_inf = torch.zeros((), device=device)
        """Flag on the device: 0 at first, 1 after the first non-finite gradient."""
        self.norm = torch.zeros((), device=device)
        """Norm of the last gradient before clipping, on the device."""
        self._skipped = torch.zeros((), device=device)
        """Number of updates that were skipped because `found_inf` was set."""
        self._explain = explain
        self._kept: list[StepRecord] = []

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Attach the flag `found_inf` to the optimiser.

        Raises ValueError for an optimiser that ignores `found_inf`.
        """
        fused = all(group.get("fused") for group in optimizer.param_groups)
        if not fused and not isinstance(optimizer, SplitMasterAdamW):
            raise ValueError(
                f"{type(optimizer).__name__} is not fused, so a NaN would reach the weights"
            )
        optimizer.found_inf = self.found_inf  # type: ignore[attr-defined]  # read by torch

    def start_step(self, step: StepRecord) -> None:
        """Record a step before its forward pass; a repeated step replaces its earlier record."""
        if self._kept and self._kept[-1].number == step.number:
            self._kept.pop()
        if len(self._kept) == MOST_KEPT:
            self.check()
        self._kept.append(step)

    @property
    def current_step(self) -> StepRecord:
        """The newest step that was recorded since the host last read `found_inf`."""
        return self._kept[-1]

    def check_norm(self, norm: torch.Tensor) -> None:
        """Update `found_inf`. `norm`: scalar norm of the whole gradient of the current step."""
        self.norm = norm.detach().to(self.found_inf.device)
        bad = self.norm.isfinite().logical_not_()
        self.found_inf.logical_or_(bad)
        self._skipped += self.found_inf

    def check(self) -> None:
        """Wait for the device; raise RunError if a gradient since the last check was not finite."""
        skipped = int(self._skipped)
        if not skipped:
            self._kept.clear()
            return
        raise self._explain(self._kept[-skipped])
