"""No NaN and no infinity reaches the optimiser, without the host reading a number in any step.

The norm of a step's gradient, which clipping has made anyway, is judged on the device. One that is
not finite raises a flag there that fused optimisers read themselves (`found_inf`): this update and
all that follow change nothing. The host reads the flag where it reads the loss anyway; weights are
then still those of the bad step, so that its rows can be run again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tunesmith_worker.engine.optimizers.split_master import SplitMasterAdamW
from tunesmith_worker.engine.random_state import RandomState
from tunesmith_worker.rundir.errors import RunError

Untyped = Any  # Any: transformers is not typed

MOST_KEPT = 64
"""Steps whose rows are kept on the host before the flag is read, should nobody log for so long."""


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """What an optimiser step was made from."""

    number: int
    """1 for the run's first."""
    rows: dict[str, Untyped]
    """As trainer/methods/batches.py collates them, on the host."""
    layout: Untyped
    """Of its micro-batches, as trainer/auto/layout_choice.py has it."""
    labelled: Untyped
    """Tokens that its loss is divided by, on the device."""
    random_state: RandomState
    """Before it."""


class NanGuard:
    def __init__(self, device: torch.device, explain: Callable[[StepRecord], RunError]) -> None:
        """`explain`: why a step's gradient is not finite, in words."""
        self.found_inf = torch.zeros((), device=device)
        """1 once a gradient was not finite."""
        self._refused = torch.zeros((), device=device)
        """Updates that the flag has kept from the weights."""
        self._explain = explain
        self._kept: list[StepRecord] = []

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises ValueError for an optimiser that does not know `found_inf`."""
        fused = all(group.get("fused") for group in optimizer.param_groups)
        if not fused and not isinstance(optimizer, SplitMasterAdamW):
            raise ValueError(f"{type(optimizer).__name__} is not fused: it would take a NaN")
        optimizer.found_inf = self.found_inf  # type: ignore[attr-defined]  # torch reads it so

    def start_step(self, step: StepRecord) -> None:
        """Before a step's forward; once more when the step is repeated."""
        if self._kept and self._kept[-1].number == step.number:
            self._kept.pop()
        if len(self._kept) == MOST_KEPT:
            self.check()
        self._kept.append(step)

    @property
    def current_step(self) -> StepRecord:
        """The step that began last, until its flag is read."""
        return self._kept[-1]

    def check_norm(self, norm: torch.Tensor) -> None:
        """norm: [], of the whole gradient of the step that began last."""
        bad = norm.detach().to(self.found_inf.device).isfinite().logical_not_()
        self.found_inf.logical_or_(bad)
        self._refused += self.found_inf

    def check(self) -> None:
        """Raises RunError if a step since the last look had a gradient that is not finite. Waits
        for the device."""
        refused = int(self._refused)
        if not refused:
            self._kept.clear()
            return
        raise self._explain(self._kept[-refused])
