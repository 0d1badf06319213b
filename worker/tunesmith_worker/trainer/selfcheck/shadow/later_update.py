"""Check of a later weight update on a sample of weights: learning rate, AdamW and weight decay.

The check reads the optimizer's moments after the step, and applies them to the weights before the
step: `w <- (1 - rate * decay) w - rate * m' / (sqrt(v') + eps)`. m' and v' are the bias-corrected
moments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tunesmith_worker.trainer.selfcheck.findings import Finding
from tunesmith_worker.trainer.selfcheck.gradients import list_names

from .compare import fault
from .update import BETAS, EPS, RATE, Rates, master_weights, rate_fault

Untyped = Any  # Any: transformers is not typed

CHECK = "update"
TENSORS = 32
"""Maximum number of compared tensors, evenly spaced in the model."""
ELEMENTS = 4096
"""Maximum number of weights of each tensor that are compared."""
UPDATE = 1e-3
UPDATE_16_BITS = 2e-2
"""Tolerance of a weight's update, relative to the learning rate. The rounding error of the weight
is added to the tolerance. With weights in plain bf16, the optimizer's moments are rounded to bf16
too."""


@dataclass(frozen=True, kw_only=True)
class _Kept:
    name: str
    parameter: torch.nn.Parameter
    before: torch.Tensor


class LaterUpdate:
    @torch.no_grad()
    def __init__(self, model: Untyped, optimizer: torch.optim.Optimizer) -> None:
        """Copy a sample of weights. Create this object between backward and optimizer step."""
        self._optimizer = optimizer
        self._group = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        trained = [
            (name, p)
            for name, p in model.named_parameters()
            if p.requires_grad and p.grad is not None and p.numel() and id(p) in self._group
        ]
        every = max(1, -(-len(trained) // TENSORS))
        self._trained = trained
        self._kept = [
            _Kept(name=name, parameter=p, before=master_weights(p, optimizer, ELEMENTS))
            for name, p in trained[::every]
        ]

    @torch.no_grad()
    def check(self, rates: Callable[[str, torch.nn.Parameter], Rates]) -> Iterator[Finding]:
        """Yield findings about wrong weight updates.

        Call this method after the optimizer step and before the scheduler step.
        """
        wrong_rates: dict[tuple[float, float], list[str]] = {}
        for name, parameter in self._trained:
            rate, wanted = float(self._group[id(parameter)]["lr"]), rates(name, parameter).rate
            if not math.isclose(rate, wanted, rel_tol=RATE, abs_tol=0.0):
                wrong_rates.setdefault((rate, wanted), []).append(name)
        for (rate, expected), names in wrong_rates.items():
            yield rate_fault(rate, expected, names, CHECK)
        if wrong_rates:
            return
        figures = [(kept.name, self._excess(kept, rates)) for kept in self._kept]
        wrong = [name for name, excess in figures if excess is not None and not excess <= 1.0]
        if wrong:
            worst = max(excess for _, excess in figures if excess is not None)
            yield fault(
                f"the update of {list_names(wrong)} differs from AdamW in plain torch by up to "
                f"{worst:.3g} times the tolerance ({UPDATE:.0e} of the learning "
                "rate, and rounding).",
                CHECK,
            )

    def _excess(
        self, kept: _Kept, rates: Callable[[str, torch.nn.Parameter], Rates]
    ) -> float | None:
        """Return the largest difference between a weight and its expected value, divided by the
        tolerance; None for 8-bit moments."""
        state = self._optimizer.state.get(kept.parameter, {})
        if "exp_avg" not in state:
            return None
        count, steps = len(kept.before), float(state["step"])
        first = state["exp_avg"].reshape(-1)[:count].double() / (1 - BETAS[0] ** steps)
        second = state["exp_avg_sq"].reshape(-1)[:count].double() / (1 - BETAS[1] ** steps)
        wanted, before = rates(kept.name, kept.parameter), kept.before.double()
        step = first / (second.sqrt() + EPS)
        expected = before * (1 - wanted.rate * wanted.decay) - wanted.rate * step
        after = master_weights(kept.parameter, self._optimizer, count).double()
        plain = kept.parameter.dtype == torch.bfloat16 and "error" not in state
        unit, share = (2.0**-7, UPDATE_16_BITS) if plain else (2.0**-23, UPDATE)
        size = torch.maximum(before.abs(), expected.abs())
        # |step| may exceed 1, and its rounding grows with it.
        tolerance = share * wanted.rate * step.abs().clamp(min=1.0) + 2 * unit * size
        return float(((after - expected).abs() / tolerance.clamp(min=1e-30)).max())
