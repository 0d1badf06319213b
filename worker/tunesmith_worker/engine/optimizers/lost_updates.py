"""How many updates rounding swallows: the share of elements that an optimiser's step meant to move
and that stayed as they were.

Counted at step 1 and every tenth after it, on up to 65,536 elements of each tensor, evenly apart.
Rounding to the nearest bf16 loses an update of less than about |w| / 512; the moments still move,
and so does the loss, a little: nothing else shows that the weights stand still.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers.trainer_callback import ExportableState

from tunesmith_worker.rundir.events import EventLog

Untyped = Any  # Any: transformers is not typed

EVERY = 10
SAMPLE = 1 << 16
ALARM = 0.20
NAME = "updates_lost_fraction"


@dataclass(frozen=True, slots=True)
class _Sample:
    parameter: torch.Tensor
    decay: bool
    weight: torch.Tensor
    """[n], as before the step."""
    error: torch.Tensor | None
    """[n], where there are error words and the parameter has some already."""


class LostUpdates:
    def __init__(self, optimizer: torch.optim.Optimizer, *, steps: int = 0) -> None:
        """Watches the steps of `optimizer`, bf16 parameters alone, until `close`; `steps` were done
        before."""
        self.fraction: float | None = None
        """Of the last step counted; None as long as no step meant to move anything."""
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
        if self._steps % EVERY == 0:
            for group in self._optimizer.param_groups:
                if group["lr"] == 0.0:  # warm-up begins there, and nothing is meant to move
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
        lost, meant = 0, 0
        counts = [self._count(sample) for sample in self._samples]
        for one_lost, one_meant in counts:
            lost, meant = lost + int(one_lost), meant + int(one_meant)
        if meant:
            self.fraction = lost / meant
        self._samples = []

    def _count(self, sample: _Sample) -> tuple[torch.Tensor, torch.Tensor]:
        """Updates lost and meant."""
        p, state = sample.parameter, self._optimizer.state[sample.parameter]
        stochastic = "exp_avg" not in state  # loses none in the mean, whichever stayed this time
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
    """Puts the fraction among the metrics, and warns above 20 %. Comes before the callback that
    tells the metrics."""

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
        inner: Untyped = getattr(optimizer, "optimizer", optimizer)  # in accelerate's
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
        if fraction > ALARM and not self._warned:
            self._warned = True
            self._events.message(
                f"Step {state.global_step}: {fraction:.0%} of the weights' updates are rounded "
                "away, because they are too small for bf16. recipe.precision='bf16_split_master' "
                "loses none, for 12 bytes a parameter instead of 6; 'bf16_sr8' none in the mean, "
                "for 4.",
                level="warn",
                data={"step": state.global_step, NAME: fraction},
            )


def _evenly(x: torch.Tensor) -> torch.Tensor:
    """Up to SAMPLE elements of x, as [n], a view."""
    return x.reshape(-1)[:: max(1, -(-x.numel() // SAMPLE))]
