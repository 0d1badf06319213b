"""What a chunk of logits says about its target tokens, and its gradient in the chunk's place.

Shared by log_prob.py and linear_cross_entropy.py; knows neither hidden states nor the weight.

For one row of logits y and its target t, with g = logit_scale / temperature and a soft cap c:
    z_j = c tanh(logit_scale y_j / c) / temperature        (without a cap: z_j = g y_j)
    q_j = softmax of z over the columns j != t,  lse_o = logsumexp of z over them
    d = lse_o - z_t,  p_t = sigmoid(-d),  Q = 1 - p_t = sigmoid(d)
    log p_t = -softplus(d)
    f_j = 1 - (z_j temperature / c)^2  (without a cap: 1)
    d log p_t / d y_t = g f_t Q,   d log p_t / d y_j = -g f_j Q q_j
No term subtracts nearly equal numbers when p_t -> 1, as 1 - p_t and z_t - logsumexp(z) would
(arXiv 2610.31642). The row buffer is overwritten with f_j q_j (0 at the target): what is the same
for a whole row is multiplied into the [n, H] product with the weight, not into [n, V].

With mu = sum_j q_j z_j, the entropy of p and its gradient come from the same pass:
    H = p_t softplus(d) + Q softplus(-d) + Q (lse_o - mu)
    dH / d y_j = -g f_j Q q_j (z_j - mu) - p_t (z_t - mu) d log p_t / d y_j
(0 in place of the first term at j = t).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

import torch
from torch.nn.functional import softplus

from .dispatch import uses_triton
from .tiles import wide

__all__ = ["LogitTransform", "RowStatistics", "read_rows"]

# Row tiles of this size fit a core's caches (docs/contributing/log); smaller tiles cost more calls.
_SCRATCH_BYTES = 2 << 20
_MASKED = -1e30  # a logit of no probability that still multiplies without overflow


@dataclass(frozen=True, kw_only=True)
class LogitTransform:
    """From the head's output y to the logit z, in TRL's and transformers' order."""

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
        """In place, on a tensor of a wide dtype."""
        if self.softcap is None:
            return logits if self.gain == 1.0 else logits.mul_(self.gain)
        logits.mul_(self.logit_scale / self.softcap).tanh_()
        return logits.mul_(self.softcap / self.temperature)

    def slope_(self, z: torch.Tensor) -> torch.Tensor:
        """f = 1 - tanh^2 of the soft cap, in place of z; all ones without one."""
        if self.softcap is None:
            return z.fill_(1.0)
        return z.mul_(self.temperature / self.softcap).square_().neg_().add_(1.0)


@dataclass(frozen=True, kw_only=True)
class RowStatistics:
    """What is kept of each of N rows; see the formulas above."""

    target: torch.Tensor  # [N] z_t
    max_other: torch.Tensor  # [N] largest z_j, j != t
    sum_other: torch.Tensor  # [N] sum_j exp(z_j - max_other), j != t
    mean_other: torch.Tensor | None  # [N] mu - max_other, if the entropy is asked for
    is_top1: torch.Tensor | None  # [N] bool: t is the first of the largest columns

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
        """Views of `rows` rows each, the last of what is left."""
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
        """d = lse_o - z_t, [N] fp64: exp(-d) is relative to a rounding of d."""
        offset = self.max_other.double() - self.target.double()
        return offset + self.sum_other.double().log()

    def log_probs(self) -> torch.Tensor:
        """log p_t, [N] fp64."""
        return -softplus(self.distance())

    def entropy(self) -> torch.Tensor:
        """H, [N] fp64."""
        assert self.mean_other is not None
        d = self.distance()
        others = self.sum_other.double().log() - self.mean_other.double()
        return torch.sigmoid(-d) * softplus(d) + torch.sigmoid(d) * (softplus(-d) + others)

    def target_above_mean(self) -> torch.Tensor:
        """z_t - mu, [N]."""
        assert self.mean_other is not None
        return self.target - (self.max_other + self.mean_other)


def read_rows(
    logits: torch.Tensor,
    targets: torch.Tensor,
    transform: LogitTransform,
    out: RowStatistics,
    *,
    gradient: bool,
    spread: torch.Tensor | None = None,
) -> None:
    """Statistics of a chunk of raw logits [n, V] into `out`.

    With `gradient` the chunk is overwritten by f_j q_j, and `spread` [n, V], if given, by
    f_j q_j (z_j - mu); without it the chunk's content is undefined afterwards.
    """
    if uses_triton(logits):
        from .head_rows_triton import launch

        launch(logits, targets, transform, out, gradient=gradient, spread=spread)
        return
    vocabulary = logits.shape[1]
    dtype = wide(logits.dtype)
    step = max(1, min(len(logits), _SCRATCH_BYTES // (vocabulary * dtype.itemsize)))
    scratch = [logits.new_empty((step, vocabulary), dtype=dtype) for _ in range(2)]
    spreads = repeat(None) if spread is None else torch.split(spread, step)
    tiles = (torch.split(logits, step), torch.split(targets[:, None], step), out.split(step))
    for tile, tile_targets, tile_out, tile_spread in zip(*tiles, spreads, strict=False):
        _read_tile(
            tile,
            tile_targets,
            transform,
            tile_out,
            scratch,
            gradient=gradient,
            spread=tile_spread,
        )


def _read_tile(
    logits: torch.Tensor,
    targets: torch.Tensor,
    transform: LogitTransform,
    out: RowStatistics,
    scratch: list[torch.Tensor],
    *,
    gradient: bool,
    spread: torch.Tensor | None,
) -> None:
    """`read_rows` for a tile of rows that fits in the cache; targets [n, 1]."""
    work, q = (buffer[: len(logits)] for buffer in scratch)
    in_place = logits.dtype == work.dtype
    z, q = (logits, logits) if in_place else (work.copy_(logits), q)
    transform.apply_(z)
    torch.gather(z, 1, targets, out=out.target[:, None])
    z.scatter_(1, targets, _MASKED)
    torch.amax(z, 1, out=out.max_other)
    if out.is_top1 is not None:
        _find_top1(z, targets, out)
    keeps_z = out.mean_other is not None or (gradient and transform.softcap is not None)
    if keeps_z:
        z = torch.sub(z, out.max_other[:, None], out=work)
    torch.softmax(z, 1, out=q)
    # the largest q_j is exp(0) / sum_other, which saves a pass for the sum
    torch.amax(q, 1, out=out.sum_other).reciprocal_()
    if out.mean_other is not None:
        out.mean_other.copy_(torch.linalg.vecdot(q, z))
    if not gradient:
        return
    if spread is not None:
        assert out.mean_other is not None
        spread.copy_((z - out.mean_other[:, None]).mul_(q))
    if transform.softcap is not None:
        slope = transform.slope_(z.add_(out.max_other[:, None])).scatter_(1, targets, 0.0)
        q.mul_(slope)
        if spread is not None:
            spread.mul_(slope)
    if not in_place:
        logits.copy_(q)


def _find_top1(z: torch.Tensor, targets: torch.Tensor, out: RowStatistics) -> None:
    """argmax takes the first of equal columns; z [n, V] with the target masked."""
    assert out.is_top1 is not None
    torch.gt(out.target, out.max_other, out=out.is_top1)
    tied = (out.target == out.max_other).nonzero()[:, 0]
    if len(tied):
        first = (z[tied] == out.max_other[tied, None]).to(torch.uint8).argmax(1)
        out.is_top1[tied] = targets[tied, 0] < first
