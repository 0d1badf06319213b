"""Whether updates arrive in the weights: a few rows of each tensor, those with the largest
gradient, are kept and compared after some steps.

AdamW's first update of an element is lr g / (|g| + eps), at least lr / 2 where |g| >= eps
(https://arxiv.org/abs/1412.6980, section 2.1; gradients after clipping). An element must move if
that is more than its weight's last bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tunesmith_kernels.error_word import join_words
from tunesmith_schema import ErrorCategory

from .findings import Finding
from .gradients import Unit, moving

Untyped = Any  # Any: transformers is not typed

ROWS = 16
COLUMNS = 4096
"""Of a row; all of it but in matrices wider than that."""
SHARE = 0.25
"""Of the rate, below which a first update is not AdamW's."""
CHANCES = 40.0
"""Expected moves of stochastic rounding below which none is a matter of luck (p = e^-40)."""


@dataclass(frozen=True, kw_only=True)
class _Kept:
    unit: str
    parameter: torch.nn.Parameter
    group: int | None
    """The optimiser's; None where it does not have the parameter."""
    rows: torch.Tensor
    before: torch.Tensor
    """[rows, columns] fp32."""
    pulled: torch.Tensor
    """[rows, columns] bool: the gradient is above AdamW's eps."""


class Movement:
    @torch.no_grad()
    def __init__(self, units: Sequence[Unit], optimizer: torch.optim.Optimizer) -> None:
        """After a backward and before the optimiser's step. Reads nothing on the host."""
        self._optimizer = optimizer
        of = {id(p): i for i, g in enumerate(optimizer.param_groups) for p in g["params"]}
        self._sums = [0.0] * len(optimizer.param_groups)
        self._highest = list(self._sums)
        self._steps = 0
        self._arrived: set[int] = set()
        """Parameters, by id, that an update reached: in 16 bits they may come back to the start."""
        self._kept = [
            self._keep(unit.name, parameter, of.get(id(parameter)))
            for unit, parameter in moving(list(units))
            if parameter.grad is not None and parameter.numel()
        ]

    def steps_with(self) -> None:
        """Before an optimiser's step: at which rates it will be."""
        self._steps += 1
        for index, group in enumerate(self._optimizer.param_groups):
            rate = float(group["lr"])
            self._sums[index] += rate
            self._highest[index] = max(self._highest[index], rate)

    @property
    def resting(self) -> list[int]:
        """Groups whose rate was 0 at every step so far."""
        groups = enumerate(self._optimizer.param_groups)
        return [index for index, group in groups if group["params"] and not self._sums[index]]

    @torch.no_grad()
    def judged(self, *, fresh: bool) -> Iterator[Finding]:
        """`fresh`: one step was taken, the optimiser's first. Waits for the device, once."""
        strangers = [one.unit for one in self._kept if one.group is None]
        if strangers:
            yield _finding(f"{_listed(strangers)} is not in the optimiser.")
        kept = [one for one in self._kept if one.group is not None and self._sums[one.group] > 0]
        if not kept:
            return
        figures = torch.stack([self._figures(one) for one in kept]).tolist()
        still, slow = [], []
        for one, (must, moved, most) in zip(kept, figures, strict=True):
            assert one.group is not None, "left out above"
            if moved:
                self._arrived.add(id(one.parameter))
            elif must and id(one.parameter) not in self._arrived:
                still.append(one.unit)
            if must and moved and fresh and most < SHARE * self._sums[one.group]:
                slow.append((one.unit, most, self._sums[one.group]))
        if still:
            rate = max(self._sums)
            yield _finding(
                f"{_listed(still)} did not move in {self._steps} steps, although it has a gradient "
                f"and the rates add up to {rate:.3g}."
            )
        if slow:
            unit, most, rate = slow[0]
            yield _finding(
                f"{_listed([name for name, *_ in slow])} hardly moved: {unit} by {most:.3g} at "
                f"most, where the first AdamW update at a rate of {rate:.3g} is at least "
                f"{SHARE * rate:.3g}."
            )

    def _keep(self, unit: str, parameter: torch.nn.Parameter, group: int | None) -> _Kept:
        assert parameter.grad is not None, "asked for above"
        grad = _as_rows(parameter.grad)
        strength = torch.linalg.vector_norm(grad, torch.inf, dim=1)
        rows = strength.topk(min(ROWS, len(strength))).indices
        eps = 0.0 if group is None else self._optimizer.param_groups[group]["eps"]
        return _Kept(
            unit=unit,
            parameter=parameter,
            group=group,
            rows=rows,
            before=self._now(parameter, rows),
            pulled=_cut(grad, rows).abs() >= eps,
        )

    def _now(self, parameter: torch.nn.Parameter, rows: torch.Tensor) -> torch.Tensor:
        """The weights that the optimiser goes on from, fp32, a copy."""
        here = _cut(_as_rows(parameter.detach()), rows)
        error = self._optimizer.state.get(parameter, {}).get("error")
        if error is None:
            return here.float() if here.dtype != torch.float32 else here
        return join_words(here, _cut(_as_rows(error.view(parameter.shape)), rows))

    def _figures(self, one: _Kept) -> torch.Tensor:
        """[3] fp32: whether it must have moved, whether it did, the most that an element did."""
        assert one.group is not None, "asked for by the caller"
        state = self._optimizer.state.get(one.parameter, {})
        size = one.before.abs()
        if "m_code" in state:  # rounded stochastically: a step of one bf16, now and then
            chance = (self._sums[one.group] / 2) / (size * 2.0**-7 + 1e-30)
            must = (chance.clamp(max=1.0) * one.pulled).sum() > CHANCES
        else:
            narrow = one.parameter.dtype == torch.bfloat16 and "error" not in state
            unit = 2.0**-8 if narrow else 2.0**-23
            must = (one.pulled & (self._highest[one.group] / 2 > 2 * unit * size)).any()
        change = (self._now(one.parameter, one.rows) - one.before).abs()
        return torch.stack([must.float(), (change > 0).any().float(), change.max()])


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    """[rows, columns], a view."""
    return x.reshape(1, -1) if x.dim() < 2 else x.reshape(len(x), -1)


def _cut(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return x.index_select(0, rows)[:, :COLUMNS].clone()


def _finding(message: str) -> Finding:
    hint = "Nothing in a recipe does that: report it with the job's events."
    return Finding("movement", message, hint, category=ErrorCategory.INFRASTRUCTURE)


def _listed(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
