"""Transform of the head's outputs, and the statistics of each row of logits.

The formulas and symbols are in head_rows.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

import torch
from torch.nn.functional import softplus

__all__ = ["LogitTransform", "RowStatistics"]


@dataclass(frozen=True, kw_only=True)
class LogitTransform:
    """Transform from the head's output y to the logit z. TRL and transformers apply scale, soft cap
    and temperature in the same order."""

    temperature: float = 1.0
    softcap: float | None = None
    logit_scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}")
        if self.softcap is not None and not self.softcap > 0:
            raise ValueError(f"softcap must be above 0 or None, got {self.softcap}")

    @property
    def gain(self) -> float:
        return self.logit_scale / self.temperature

    def apply_(self, logits: torch.Tensor) -> torch.Tensor:
        """Transform an fp32 or fp64 tensor in place."""
        if self.softcap is None:
            return logits if self.gain == 1.0 else logits.mul_(self.gain)
        logits.mul_(self.logit_scale / self.softcap).tanh_()
        return logits.mul_(self.softcap / self.temperature)

    def slope_(self, z: torch.Tensor) -> torch.Tensor:
        """Overwrite the logits z with the derivative of the soft cap. Without a soft cap, the
        derivative is 1.
        """
        if self.softcap is None:
            return z.fill_(1.0)
        return z.mul_(self.temperature / self.softcap).square_().neg_().add_(1.0)


@dataclass(frozen=True, kw_only=True)
class RowStatistics:
    """Statistics of N rows of logits. head_rows.py defines the symbols."""

    target: torch.Tensor  # [N] z_t
    max_other: torch.Tensor  # [N] largest z_j, j != t
    sum_other: torch.Tensor  # [N] sum_j exp(z_j - max_other), j != t
    mean_other: torch.Tensor | None  # [N] mu - max_other, if the entropy is requested
    is_top1: torch.Tensor | None  # [N] bool: t is the argmax (at a tie, the first column)

    @classmethod
    def empty(
        cls, rows: int, *, like: torch.Tensor, dtype: torch.dtype, entropy: bool, top1: bool
    ) -> RowStatistics:
        target, max_other, sum_other = like.new_empty((3, rows), dtype=dtype)
        return cls(
            target=target,
            max_other=max_other,
            sum_other=sum_other,
            mean_other=like.new_empty(rows, dtype=dtype) if entropy else None,
            is_top1=like.new_empty(rows, dtype=torch.bool) if top1 else None,
        )

    def __getitem__(self, rows: slice) -> RowStatistics:
        return RowStatistics(
            target=self.target[rows],
            max_other=self.max_other[rows],
            sum_other=self.sum_other[rows],
            mean_other=None if self.mean_other is None else self.mean_other[rows],
            is_top1=None if self.is_top1 is None else self.is_top1[rows],
        )

    def split(self, rows: int) -> Iterator[RowStatistics]:
        """Yield views of the statistics, each for `rows` rows; the last view may have fewer
        rows."""
        if len(self.target) <= rows:
            yield self
            return
        parts = (self.target, self.max_other, self.sum_other, self.mean_other, self.is_top1)
        views = (repeat(None) if part is None else torch.split(part, rows) for part in parts)
        for target, max_other, sum_other, mean_other, is_top1 in zip(*views, strict=False):
            yield RowStatistics(
                target=target,
                max_other=max_other,
                sum_other=sum_other,
                mean_other=mean_other,
                is_top1=is_top1,
            )

    def distance(self) -> torch.Tensor:
        """Return d = lse_o - z_t, [N], in fp64. In fp32, the error of a large d would make exp(-d)
        imprecise."""
        offset = self.max_other.double() - self.target.double()
        return offset + self.sum_other.double().log()

    def log_probs(self) -> torch.Tensor:
        """Return the log-probs of the targets, [N] fp64."""
        return -softplus(self.distance())

    def entropy(self) -> torch.Tensor:
        """Return the entropies, [N] fp64."""
        assert self.mean_other is not None
        d = self.distance()
        others = self.sum_other.double().log() - self.mean_other.double()
        return torch.sigmoid(-d) * softplus(d) + torch.sigmoid(d) * (softplus(-d) + others)

    def target_above_mean(self) -> torch.Tensor:
        """Return each target's logit minus the mean logit of the other tokens, [N]."""
        assert self.mean_other is not None
        return self.target - (self.max_other + self.mean_other)
