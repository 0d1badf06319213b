"""Tripwire on updates: a few rows of each trained tensor must differ from earlier copies.

The rows with the largest gradients are copied, and the copies are compared with the weights after
some steps. AdamW's first update of an element is `lr g / (|g| + eps)`, where g is the clipped
gradient. If |g| >= eps, the update is at least lr / 2 (https://arxiv.org/abs/1412.6980, section
2.1). An element must change if its dtype can represent an update of lr / 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tunesmith_kernels.error_word import join_words
from tunesmith_schema import ErrorCategory

from .findings import REPORT_HINT, Finding
from .gradients import Unit, changing_parameters, first_factors, list_names

Untyped = Any  # Any: transformers is not typed

ROWS = 16
"""Number of rows to copy from each tensor."""
COLUMNS = 4096
"""Number of columns to copy from the start of each copied row."""
SHARE = 0.25
"""Minimum size of an element's first update, divided by the learning rate. A correct first update
is at least half of the learning rate."""
CHANCES = 40.0
"""Number of expected changes above which a tensor must change. Stochastic rounding changes a weight
only with some probability. With 40 expected changes among a tensor's copied weights, the
probability of no change at all is e^-40."""


@dataclass(frozen=True, kw_only=True)
class _KeptRows:
    unit: str
    parameter: torch.nn.Parameter
    group: int | None
    """Index of the parameter's optimizer group; None if no group has the parameter."""
    rows: torch.Tensor
    before: torch.Tensor
    """Copied values, fp32 [rows, columns]."""
    above_eps: torch.Tensor
    """Bool [rows, columns]: True where the gradient is above AdamW's eps."""


class Movement:
    @torch.no_grad()
    def __init__(self, units: Sequence[Unit], optimizer: torch.optim.Optimizer) -> None:
        """Copy the rows to compare, without waiting for the device.

        Create this object between backward and optimizer step."""
        self._optimizer = optimizer
        groups = enumerate(optimizer.param_groups)
        self._group_of = {id(p): i for i, group in groups for p in group["params"]}
        self._sums = [0.0] * len(optimizer.param_groups)
        self._highest = list(self._sums)
        self._steps = 0
        self._moved: set[int] = set()
        """Ids of parameters that had changed at an earlier check. One change is enough, because
        16-bit weights may change back later."""
        self._kept = [
            self._keep(unit.name, parameter, self._group_of.get(id(parameter)))
            for unit, parameter in changing_parameters(list(units))
            if parameter.grad is not None and parameter.numel()
        ]

    @torch.no_grad()
    def keep_first_factors(self, units: Sequence[Unit]) -> None:
        """Copy the current rows of LoRA's A. Call this method when LoRA's B is not 0."""
        first = {id(parameter): unit for unit, parameter in first_factors(units)}
        self._kept = [kept for kept in self._kept if id(kept.parameter) not in first]
        self._kept += [
            self._keep(f"{unit.name}.lora_A", parameter, self._group_of.get(id(parameter)))
            for unit, parameter in first_factors(units)
            if parameter.grad is not None and parameter.numel()
        ]

    def record_rates(self) -> None:
        """Record the learning rates of the next optimizer step."""
        self._steps += 1
        for index, group in enumerate(self._optimizer.param_groups):
            rate = float(group["lr"])
            self._sums[index] += rate
            self._highest[index] = max(self._highest[index], rate)

    @property
    def groups_at_rate_zero(self) -> list[int]:
        """Indices of the optimizer's parameter groups whose learning rate was 0 at every step so
        far."""
        groups = enumerate(self._optimizer.param_groups)
        return [index for index, group in groups if group["params"] and not self._sums[index]]

    @torch.no_grad()
    def check(self, *, fresh: bool) -> Iterator[Finding]:
        """Yield findings about parameters that did not change. This method waits for the device
        once.

        `fresh`: True if the optimizer has taken only its first step.
        """
        missing = [kept.unit for kept in self._kept if kept.group is None]
        if missing:
            yield _finding(f"{_list(missing)} is not in the optimizer.")
        updated = [k for k in self._kept if k.group is not None and self._sums[k.group] > 0]
        if not updated:
            return
        figures = torch.stack([self._figures(kept) for kept in updated]).tolist()
        still, slow = [], []
        for kept, (must, moved, most) in zip(updated, figures, strict=True):
            assert kept.group is not None, "filtered above"
            if moved:
                self._moved.add(id(kept.parameter))
            elif must and id(kept.parameter) not in self._moved:
                still.append(kept.unit)
            if must and moved and fresh and most < SHARE * self._sums[kept.group]:
                slow.append((kept.unit, most, self._sums[kept.group]))
        if still:
            rate = max(self._sums)
            yield _finding(
                f"{_list(still)} did not move in {self._steps} steps, although it has a gradient "
                f"and the learning rates add up to {rate:.3g}."
            )
        if slow:
            unit, most, rate = slow[0]
            yield _finding(
                f"{_list([name for name, *_ in slow])} hardly moved: {unit} by {most:.3g} at "
                f"most, but the first AdamW update at a learning rate of {rate:.3g} is at least "
                f"{SHARE * rate:.3g}."
            )

    def _keep(self, unit: str, parameter: torch.nn.Parameter, group: int | None) -> _KeptRows:
        assert parameter.grad is not None, "filtered by the caller"
        grad = _as_rows(parameter.grad)
        strength = torch.linalg.vector_norm(grad, torch.inf, dim=1)
        rows = strength.topk(min(ROWS, len(strength))).indices
        eps = 0.0 if group is None else self._optimizer.param_groups[group]["eps"]
        return _KeptRows(
            unit=unit,
            parameter=parameter,
            group=group,
            rows=rows,
            before=self._now(parameter, rows),
            above_eps=_cut(grad, rows).abs() >= eps,
        )

    def _now(self, parameter: torch.nn.Parameter, rows: torch.Tensor) -> torch.Tensor:
        here = _cut(_as_rows(parameter.detach()), rows)
        error = self._optimizer.state.get(parameter, {}).get("error")
        if error is None:
            return here.float() if here.dtype != torch.float32 else here
        return join_words(here, _cut(_as_rows(error.view(parameter.shape)), rows))

    def _figures(self, kept: _KeptRows) -> torch.Tensor:
        """Return three fp32 numbers: 1 if the tensor must change, else 0; 1 if the tensor changed,
        else 0; and the largest change of a value."""
        assert kept.group is not None, "filtered by the caller"
        state = self._optimizer.state.get(kept.parameter, {})
        size = kept.before.abs()
        if "m_code" in state:  # stochastic rounding: a weight changes only sometimes
            chance = (self._sums[kept.group] / 2) / (size * 2.0**-7 + 1e-30)
            must = (chance.clamp(max=1.0) * kept.above_eps).sum() > CHANCES
        else:
            narrow = kept.parameter.dtype == torch.bfloat16 and "error" not in state
            unit = 2.0**-8 if narrow else 2.0**-23
            must = (kept.above_eps & (self._highest[kept.group] / 2 > 2 * unit * size)).any()
        change = (self._now(kept.parameter, kept.rows) - kept.before).abs()
        return torch.stack([must.float(), (change > 0).any().float(), change.max()])


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(1, -1) if x.dim() < 2 else x.reshape(len(x), -1)


def _cut(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return x.index_select(0, rows)[:, :COLUMNS].clone()


def _finding(message: str) -> Finding:
    return Finding("movement", message, REPORT_HINT, category=ErrorCategory.INFRASTRUCTURE)


def _list(names: Sequence[str]) -> str:
    return list_names(list(dict.fromkeys(names)))
