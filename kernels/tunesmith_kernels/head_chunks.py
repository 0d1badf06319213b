"""Logits of a language-model head and their gradients, computed in chunks of rows.

All operations that compute log-probs use this module. This module does not use autograd. The
formulas are in head_rows.py and log_prob.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn.functional import linear

from .head_rows import read_rows
from .head_types import LogitTransform, RowStatistics
from .tiles import wide

__all__ = [
    "Chunk",
    "HeadCall",
    "HeadGradient",
    "TrainedRows",
    "chunks",
    "hidden_gradients",
    "row_gradients",
]

_WEIGHT_BLOCK = 16384  # number of vocabulary rows per addition to a half-precision weight gradient


@dataclass(frozen=True, kw_only=True)
class HeadCall:
    """Options of one call of the head."""

    transform: LogitTransform
    dtype: torch.dtype
    byte_budget: int
    most_rows: int
    entropy: bool
    entropy_gradient: bool
    top1: bool
    hidden_gradient: bool
    weight_gradient: bool
    bias_gradient: bool
    row_gradient: bool

    @property
    def any_gradient(self) -> bool:
        return self.hidden_gradient or self.head_gradient or self.row_gradient

    @property
    def head_gradient(self) -> bool:
        return self.weight_gradient or self.bias_gradient

    def statistics(self, rows: int, like: torch.Tensor) -> RowStatistics:
        return RowStatistics.empty(
            rows,
            like=like,
            dtype=wide(self.dtype),
            entropy=self.entropy,
            top1=self.top1,
        )


class TrainedRows(NamedTuple):
    """Trained rows of a head whose other rows are frozen."""

    ids: torch.Tensor  # [k] int64, distinct rows of the weight
    values: torch.Tensor  # [k, H]


@dataclass(frozen=True)
class Chunk:
    """Logits of some consecutive rows. `read_rows` overwrites the logits."""

    rows: slice
    hidden: torch.Tensor  # [n, H]
    targets: torch.Tensor  # [n]
    pull: torch.Tensor  # [n, V] f_j q_j
    spread: torch.Tensor | None  # [n, V] f_j q_j (z_j - mu)
    statistics: RowStatistics
    call: HeadCall

    def other_probs(self) -> torch.Tensor:
        """Return g Q, [n, 1]: g times the total probability of all tokens except the target
        (symbols: head_rows.py)."""
        d = self.statistics.distance()[:, None]
        return (torch.sigmoid(d) * self.call.transform.gain).to(self.statistics.target.dtype)

    def target_slope(self) -> torch.Tensor:
        """Return the derivative of the soft cap at the target's logit, [n, 1]."""
        return self.call.transform.slope_(self.statistics.target[:, None].clone())

    def entropy_share(self) -> torch.Tensor:
        """Return p_t (z_t - mu), [n, 1], a factor in the entropy's gradient (symbols:
        head_rows.py)."""
        p = torch.sigmoid(-self.statistics.distance())
        share = p * self.statistics.target_above_mean()
        return share.to(self.statistics.target.dtype)[:, None]


def chunks(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    statistics: RowStatistics,
    call: HeadCall,
    trained: TrainedRows | None = None,
) -> Iterator[Chunk]:
    """Yield chunks with about equal numbers of rows.

    A short last chunk would be slow, because each chunk reads the whole weight.
    """
    count, vocabulary = len(hidden), len(weight)
    buffers = 2 if call.entropy_gradient else 1
    most = call.byte_budget // (vocabulary * call.dtype.itemsize * buffers)
    parts = -(-count // max(1, min(most, call.most_rows)))
    rows = -(-count // max(1, parts))
    logits = hidden.new_empty((rows, vocabulary), dtype=call.dtype)
    spread = torch.empty_like(logits) if call.entropy_gradient else None
    for start in range(0, count, max(1, rows)):
        part = slice(start, min(start + rows, count))
        h, z = hidden[part].to(call.dtype), logits[: part.stop - start]
        if bias is None:
            torch.mm(h, weight.t(), out=z)
        else:
            torch.addmm(bias, h, weight.t(), out=z)
        if trained is not None:
            own = None if bias is None else bias[trained.ids]
            z.index_copy_(1, trained.ids, linear(h, trained.values.to(h.dtype), own))
        s = None if spread is None else spread[: part.stop - start]
        out = statistics[part]
        read_rows(z, targets[part], call.transform, out, gradient=call.any_gradient, spread=s)
        yield Chunk(part, h, targets[part], z, s, statistics[part], call)


def hidden_gradients(
    chunk: Chunk, weight: torch.Tensor, trained: TrainedRows | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the gradients of the log-prob and of the entropy with respect to the hidden states,
    [n, H] each.
    """
    factor = chunk.other_probs()
    at_target = weight[chunk.targets].to(factor.dtype)
    pulled = torch.mm(chunk.pull, weight)
    spread = None if chunk.spread is None else torch.mm(chunk.spread, weight)
    if trained is not None:
        # The products above used the frozen rows, so this adds (trained rows - frozen rows).
        moved = trained.values.to(factor.dtype) - weight[trained.ids].to(factor.dtype)
        at_target += _is_target(chunk, trained).to(factor.dtype) @ moved
        pulled = pulled.to(factor.dtype).addmm_(_columns(chunk.pull, trained, factor), moved)
        if spread is not None and chunk.spread is not None:
            columns = _columns(chunk.spread, trained, factor)
            spread = spread.to(factor.dtype).addmm_(columns, moved)
    unit = at_target.mul_(chunk.target_slope()).sub_(pulled).mul_(factor)
    if spread is None:
        return unit, None
    away = spread.to(factor.dtype).mul_(factor)
    return unit, away.addcmul_(unit, chunk.entropy_share()).neg_()


def row_gradients(chunk: Chunk, trained: TrainedRows) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the gradients of the log-prob and of the entropy with respect to the k outputs that
    the trained rows compute, [n, k] each. These gradients times the hidden states are the gradients
    of the trained rows.
    """
    factor = chunk.other_probs()
    at_target = chunk.target_slope() * _is_target(chunk, trained)
    unit = at_target.sub_(_columns(chunk.pull, trained, factor)).mul_(factor)
    if chunk.spread is None:
        return unit, None
    away = _columns(chunk.spread, trained, factor).mul_(factor)
    return unit, away.addcmul_(unit, chunk.entropy_share()).neg_()


def _is_target(chunk: Chunk, trained: TrainedRows) -> torch.Tensor:
    return chunk.targets[:, None] == trained.ids  # [n, k]


def _columns(of: torch.Tensor, trained: TrainedRows, like: torch.Tensor) -> torch.Tensor:
    return of[:, trained.ids].to(like.dtype)  # [n, k], a copy


class HeadGradient:
    """Gradients of the head's weight and bias, summed over the rows."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, call: HeadCall) -> None:
        dtype = wide(call.dtype)
        self.weight = torch.zeros_like(weight, dtype=dtype) if call.weight_gradient else None
        self.bias = (
            torch.zeros_like(bias, dtype=dtype) if call.bias_gradient and bias is not None else None
        )

    def add(self, chunk: Chunk, log_prob: torch.Tensor, entropy: torch.Tensor | None) -> None:
        """Add the gradients of a chunk.

        `log_prob` and `entropy`: upstream gradients of the chunk's log-probs and entropies, [n, 1]
        each."""
        factor = chunk.other_probs()
        if entropy is not None:
            assert chunk.spread is not None
            log_prob = log_prob - entropy * chunk.entropy_share()
            self._subtract(chunk, chunk.spread, entropy * factor)
        by_row = log_prob * factor
        at_target = by_row * chunk.target_slope()
        if self.weight is not None:
            self.weight.index_add_(0, chunk.targets, at_target * chunk.hidden)
        if self.bias is not None:
            self.bias.index_add_(0, chunk.targets, at_target[:, 0])
        self._subtract(chunk, chunk.pull, by_row)

    def _subtract(self, chunk: Chunk, pull: torch.Tensor, by_row: torch.Tensor) -> None:
        if self.bias is not None:
            self.bias.sub_(torch.mv(pull.t(), by_row[:, 0].to(pull.dtype)))
        if self.weight is None:
            return
        pushed = (-by_row * chunk.hidden).to(pull.dtype)
        if pull.dtype == self.weight.dtype:
            self.weight.addmm_(pull.t(), pushed)
        elif pull.is_cuda:
            torch.addmm(self.weight, pull.t(), pushed, out_dtype=self.weight.dtype, out=self.weight)
        else:
            for start in range(0, len(self.weight), _WEIGHT_BLOCK):
                block = slice(start, start + _WEIGHT_BLOCK)
                self.weight[block].add_(torch.mm(pull[:, block].t(), pushed))
