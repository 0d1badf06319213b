"""Measure the fraction of updates lost to rounding: a lost update is nonzero, but does not change
its weight.

The fraction of lost updates is measured at step 1 and every tenth step after it, on up to 65,536
evenly spaced elements per tensor. Rounding to the nearest bf16 loses updates smaller than about |w|
/ 512. No other metric shows lost updates: the moments still change, and the loss changes slightly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers.trainer_callback import ExportableState

from tunesmith_worker.rundir.events import EventLog

Untyped = Any  # Any: transformers is not typed

_INTERVAL = 10  # steps
_SAMPLE_SIZE = 1 << 16  # maximum number of elements per tensor
_WARN_ABOVE = 0.20
NAME = "updates_lost_fraction"


@dataclass(frozen=True, slots=True)
class _Sample:
    parameter: torch.Tensor
    decay: bool
    weight: torch.Tensor
    """Weights before the step, [n]."""
    error: torch.Tensor | None
    """Low 16 bits of the fp32 masters before the step, [n]; None if no masters exist yet."""


class LostUpdates:
    """Counts lost updates of an optimiser's bf16 parameters."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, steps: int = 0) -> None:
        """Register hooks on `optimizer`; `close` removes them. `steps`: number of completed
        training steps."""
        self.fraction: float | None = None
        """Fraction of lost updates at the last measured step; None until a measured step has a
        nonzero update."""
        self._optimizer = optimizer
        self._steps = steps
        self._samples: list[_Sample] = []
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, *_: object) -> None:
        self._samples = []
        if self._steps % _INTERVAL == 0:
            for group in self._optimizer.param_groups:
                if group["lr"] == 0.0:  # at the start of the warm-up
                    continue
                for p in group["params"]:
                    if p.grad is None or p.dtype != torch.bfloat16:
                        continue
                    error = self._optimizer.state[p].get("error")
                    self._samples.append(
                        _Sample(
                            p,
                            group["weight_decay"] > 0.0,
                            _evenly(p.detach()).clone(),
                            None if error is None else _evenly(error).clone(),
                        )
                    )
        self._steps += 1

    @torch.no_grad()
    def _after(self, *_: object) -> None:
        counts = [self._count(sample) for sample in self._samples]
        lost = sum(int(lost) for lost, _ in counts)
        total = sum(int(updates) for _, updates in counts)
        if total:
            self.fraction = lost / total
        self._samples = []

    def _count(self, sample: _Sample) -> tuple[torch.Tensor, torch.Tensor]:
        p, state = sample.parameter, self._optimizer.state[sample.parameter]
        stochastic = "exp_avg" not in state  # stochastic rounding loses no update on average
        moves = _evenly(state["m_code" if stochastic else "exp_avg"]) != 0
        if sample.decay:
            moves = moves | (sample.weight != 0)
        if stochastic:
            return moves.new_zeros((), dtype=torch.int64), moves.sum()
        stays = _evenly(p.detach()) == sample.weight
        if "error" in state:
            before = 0 if sample.error is None else sample.error
            stays = stays & (_evenly(state["error"]) == before)
        return (stays & moves).sum(), moves.sum()


class LostUpdatesCallback(transformers.TrainerCallback, ExportableState):  # type: ignore[misc]  # untyped
    """Adds the fraction of lost updates to the metrics, and warns above 20 %.

    This callback must run before the callback that writes the metrics."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._warned = False
        self._fraction: float | None = None
        self._lost: LostUpdates | None = None

    def state(self) -> dict[str, Untyped]:
        fraction = self._lost.fraction if self._lost is not None else None
        return {"args": {}, "attributes": {"_warned": self._warned, "_fraction": fraction}}

    def on_train_begin(
        self,
        args: Untyped,
        state: Untyped,
        control: Untyped,
        optimizer: Untyped = None,
        **_: Untyped,
    ) -> None:
        inner: Untyped = getattr(optimizer, "optimizer", optimizer)  # unwrap accelerate's optimizer
        self._lost = LostUpdates(inner, steps=state.global_step)
        self._lost.fraction = self._fraction

    def on_train_end(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        if self._lost is not None:
            self._lost.close()

    def on_log(
        self,
        args: Untyped,
        state: Untyped,
        control: Untyped,
        logs: dict[str, float] | None = None,
        **_: Untyped,
    ) -> None:
        fraction = self._lost.fraction if self._lost is not None else None
        if logs is None or "loss" not in logs or fraction is None:
            return
        logs[NAME] = fraction
        if fraction > _WARN_ABOVE and not self._warned:
            self._warned = True
            self._events.message(
                f"Step {state.global_step}: {fraction:.0%} of the weights' updates are rounded "
                "away, because they are too small for bf16. recipe.precision='bf16_split_master' "
                "loses no update (12 bytes per parameter instead of 6); 'bf16_sr8' loses none on "
                "average (4 bytes).",
                level="warn",
                data={"step": state.global_step, NAME: fraction},
            )


def _evenly(x: torch.Tensor) -> torch.Tensor:
    """Return a view [n] of up to _SAMPLE_SIZE evenly spaced elements of x."""
    return x.reshape(-1)[:: max(1, -(-x.numel() // _SAMPLE_SIZE))]
