"""Check of an attempt's first weight update: learning rate, AdamW and weight decay in plain torch.

With the moments m and v before update t, which are zero in the first update of a run
(https://arxiv.org/abs/1711.05101):

    m' = beta1 m + (1 - beta1) g          v' = beta2 v + (1 - beta2) g^2
    w <- (1 - rate * decay) w - rate * (m' / (1 - beta1^t)) / (sqrt(v' / (1 - beta2^t)) + eps)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tunesmith_kernels.error_word import join_words
from tunesmith_kernels.moment_codes import BLOCK, decode_m, decode_v
from tunesmith_worker.trainer.selfcheck.findings import Finding
from tunesmith_worker.trainer.selfcheck.gradients import list_names

from .compare import fault

Untyped = Any  # Any: transformers is not typed

CHECK = "first_update"
BETAS, EPS = (0.9, 0.999), 1e-8
"""AdamW's constants in every run."""
MOST_ELEMENTS = 1 << 26
"""Maximum number of copied elements, weights and moments together. In larger models, only the first
rows of each tensor are copied."""
RATE = 1e-6
"""Relative tolerance of the learning rate."""
UPDATE = 1e-3
"""Tolerance of a weight's update, relative to the learning rate. The rounding error of the weight
is added to the tolerance."""
_NOT_DECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
"""Names of parameters without weight decay: biases and norms."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Learning rate and weight decay that the recipe requires of a parameter."""

    rate: float
    decay: float


@dataclass(frozen=True, kw_only=True)
class _Kept:
    name: str
    parameter: torch.nn.Parameter
    before: torch.Tensor
    """fp32 [n]: copy of the first n elements of the parameter before the update."""
    gradient: torch.Tensor
    updates: int
    moments: tuple[torch.Tensor, torch.Tensor] | None
    """fp32 [n] each: m and v of the same weights; None before the first update."""


class FirstUpdate:
    @torch.no_grad()
    def __init__(self, model: Untyped, optimizer: torch.optim.Optimizer) -> None:
        """Copy the weights to compare. Create this object between backward and optimizer step."""
        self._optimizer = optimizer
        trained = {
            name: p
            for name, p in model.named_parameters()
            if p.requires_grad and p.grad is not None and p.numel()
        }
        self._group = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        total = sum(p.numel() for p in trained.values())
        updates = {name: updates_of(p, optimizer) for name, p in trained.items()}
        copies = 3 if any(updates.values()) else 1
        most = total
        if copies * total > MOST_ELEMENTS:
            most = MOST_ELEMENTS // (copies * max(1, len(trained)))
        self._kept = [
            _Kept(
                name=name,
                parameter=p,
                before=master_weights(p, optimizer, most),
                gradient=_flat(p.grad)[:most],
                updates=updates[name],
                moments=moments_of(p, optimizer, most) if updates[name] else None,
            )
            for name, p in trained.items()
        ]
        self.compared = sum(len(kept.before) for kept in self._kept)
        """Number of weights whose update is compared."""
        self.total = total

    @torch.no_grad()
    def check(self, rates: Callable[[str, torch.nn.Parameter], Rates]) -> Iterator[Finding]:
        """Yield findings about wrong weight updates. Call this method after the optimizer step and
        before the scheduler step.

        `rates`: function that returns the learning rate and weight decay that the recipe requires
        of a parameter."""
        wrong_rates: dict[tuple[float, float], list[str]] = {}
        wrong_decay: list[tuple[str, float, float]] = []
        moved: list[tuple[str, float, float]] = []
        for kept in self._kept:
            group = self._group.get(id(kept.parameter))
            if group is None:
                continue  # the tripwire `movement` reports this
            wanted = rates(kept.name, kept.parameter)
            rate, decay = float(group["lr"]), float(group["weight_decay"])
            if not math.isclose(rate, wanted.rate, rel_tol=RATE, abs_tol=0.0):
                wrong_rates.setdefault((rate, wanted.rate), []).append(kept.name)
                continue
            if not math.isclose(decay, wanted.decay, rel_tol=RATE, abs_tol=0.0):
                wrong_decay.append((kept.name, decay, wanted.decay))
                continue
            excess, share = self._difference(kept, wanted)
            if not excess <= 1.0:
                moved.append((kept.name, share, wanted.rate))
        for (rate, expected), names in wrong_rates.items():
            yield rate_fault(rate, expected, names, CHECK)
        if wrong_decay:
            name, decay, expected = wrong_decay[0]
            yield fault(
                f"the weight decay of {list_names([one for one, *_ in wrong_decay])} is {decay:g}, "
                f"but the recipe's is {expected:g} (tolerance {RATE:.0e}).",
                CHECK,
            )
        if moved:
            name, share, rate = moved[0]
            yield fault(
                f"the update of {list_names([one for one, *_ in moved])} is not AdamW's: the "
                f"change of {name} is {share:.4g} times the change that plain torch computes at a "
                f"learning rate of {rate:.3g} (tolerance {UPDATE:.0e} of the rate, and rounding).",
                CHECK,
            )

    def _difference(self, kept: _Kept, wanted: Rates) -> tuple[float, float]:
        """Return two ratios: the largest difference between an element and its expected value,
        divided by the tolerance; and the tensor's change, divided by its expected change."""
        state = self._optimizer.state.get(kept.parameter, {})
        after = master_weights(kept.parameter, self._optimizer, len(kept.before))
        gradient = kept.gradient.double()
        before = kept.before.double()
        first, second = (1 - BETAS[0]) * gradient, (1 - BETAS[1]) * gradient.square()
        if kept.moments is not None:
            first = BETAS[0] * kept.moments[0].double() + first
            second = BETAS[1] * kept.moments[1].double() + second
        count = kept.updates + 1
        first, second = first / (1 - BETAS[0] ** count), second / (1 - BETAS[1] ** count)
        step = first / (second.sqrt() + EPS)
        expected = before * (1 - wanted.rate * wanted.decay) - wanted.rate * step
        unit = 2.0**-23
        if kept.parameter.dtype == torch.bfloat16 and "error" not in state:
            unit = 2.0**-7  # a whole unit of the last bit, because rounding is stochastic
        size = torch.maximum(before.abs(), expected.abs())
        # After the first update, |step| may exceed 1, and its rounding grows with it.
        relative = UPDATE * wanted.rate * step.abs().clamp(min=1.0)
        tolerance = (relative + 2 * unit * size).clamp(min=1e-30)
        apart = (after.double() - expected).abs() / tolerance
        change, right = after.double() - before, expected - before
        squares = float(right.square().sum())
        share = float((change * right).sum()) / squares if squares else 0.0
        excess = float(apart.max())
        if "m_code" in state and squares:  # stochastic rounding is exact on average
            noise = unit * float(before.abs().mean()) * math.sqrt(len(before) / squares)
            off = abs(share - 1.0) / (0.05 + 6 * noise)
            excess = max(excess, off)
        return excess, share


def master_weights(
    parameter: torch.nn.Parameter, optimizer: torch.optim.Optimizer, count: int
) -> torch.Tensor:
    """Return a copy of a tensor's first `count` weights in fp32, from the optimizer."""
    here = _flat(parameter.detach())[:count]
    error = optimizer.state.get(parameter, {}).get("error")
    if error is None:
        return here.to(torch.float32, copy=True)
    return join_words(here, error.view(-1)[: len(here)])


def updates_of(parameter: torch.nn.Parameter, optimizer: torch.optim.Optimizer) -> int:
    """Return the number of earlier updates of a parameter."""
    return int(optimizer.state.get(parameter, {}).get("step", 0))


def moments_of(
    parameter: torch.nn.Parameter, optimizer: torch.optim.Optimizer, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return copies of m and v in fp32, of the first `count` weights of the tensor."""
    state = optimizer.state[parameter]
    if "m_code" not in state:
        first, second = (_flat(state[name])[:count] for name in ("exp_avg", "exp_avg_sq"))
        return first.to(torch.float32, copy=True), second.to(torch.float32, copy=True)
    m_code, v_code = state["m_code"][:count], state["v_code"][:count]
    blocks = -(-len(m_code) // BLOCK)
    m, v, scratch = torch.zeros(3, blocks * BLOCK, device=m_code.device)
    decode_m(m_code, state["m_scale"][:blocks], m, scratch)
    decode_v(v_code, state["v_scale"][:blocks], v)
    return m[: len(m_code)], v[: len(v_code)]


def decaying(model: Untyped) -> set[str]:
    """Return the names of the parameters with weight decay: all but biases and norms."""
    norms = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, torch.nn.LayerNorm)
        for parameter in module.parameters()
    }
    return {
        name
        for name, parameter in model.named_parameters()
        if id(parameter) not in norms and _NOT_DECAYED.search(name.lower()) is None
    }


def rate_fault(rate: float, expected: float, names: list[str], check: str) -> Finding:
    times = f", {expected / rate:.4g} times less" if 0 < rate < expected else ""
    return fault(
        f"the learning rate of {list_names(names)} is {rate:.4g}{times}, but the recipe's "
        f"schedule gives {expected:.4g} (tolerance {RATE:.0e}).",
        check,
    )


def _flat(x: torch.Tensor | None) -> torch.Tensor:
    assert x is not None, "filtered by the caller"
    return x.reshape(-1)
