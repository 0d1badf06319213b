"""Statistics of the target tokens in a chunk of logits.

This module needs only the logits, not the hidden states or the weight. The gradient of the logits
overwrites the logits. For one row of logits y with target t, let g = logit_scale / temperature, and
let c be the soft cap. The statistics of the row are:

    z_j = c tanh(logit_scale y_j / c) / temperature        (without soft cap: z_j = g y_j)
    q_j = softmax of z over the columns j != t,  lse_o = logsumexp of z over these columns
    d = lse_o - z_t,  p_t = sigmoid(-d),  Q = 1 - p_t = sigmoid(d)
    log p_t = -softplus(d)
    f_j = 1 - (z_j temperature / c)^2  (without soft cap: 1)
    d log p_t / d y_t = g f_t Q,   d log p_t / d y_j = -g f_j Q q_j

These formulas lose no precision for p_t near 1, unlike 1 - p_t and z_t - logsumexp(z) (arXiv
2610.31642). The values f_j q_j overwrite the logits y_j, and 0 overwrites y_t. Factors that are
constant within a row, such as g Q, are not applied to the logits [n, V] but later to the smaller
gradient [n, H].

With mu = sum_j q_j z_j, the entropy of p and its gradient are:

    H = p_t softplus(d) + Q softplus(-d) + Q (lse_o - mu)
    dH / d y_j = -g f_j Q q_j (z_j - mu) - p_t (z_t - mu) d log p_t / d y_j

The first term of the gradient is 0 for j = t.
"""

from __future__ import annotations

from itertools import repeat

import torch

from .dispatch import uses_triton
from .head_types import LogitTransform, RowStatistics
from .tiles import wide

__all__ = ["read_rows"]

# A row tile of this size fits a core's caches (docs/contributing/log). Smaller tiles need more
# calls.
_SCRATCH_BYTES = 2 << 20
_MASKED = -1e30  # logit with probability 0; products with it do not overflow


def read_rows(
    logits: torch.Tensor,
    targets: torch.Tensor,
    transform: LogitTransform,
    out: RowStatistics,
    *,
    gradient: bool,
    spread: torch.Tensor | None = None,
) -> None:
    """Write the statistics of a chunk of raw logits [n, V] to `out`.

    If `gradient` is True, f_j q_j overwrites the logits, and f_j q_j (z_j - mu) is written to
    `spread` [n, V] unless `spread` is None. If `gradient` is False, the logits are undefined
    afterwards.
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
    """Compute `read_rows` for a tile of rows that fits in the cache. The targets are [n, 1]."""
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
    # The largest q_j is exp(0) / sum_other, so sum_other needs no extra pass over the row.
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
    """Set `is_top1`: True for each row whose target has the largest logit. If several columns have
    the largest logit, the first column counts.

    `z`: logits [n, V], in which the target's logit is masked."""
    assert out.is_top1 is not None
    torch.gt(out.target, out.max_other, out=out.is_top1)
    tied = (out.target == out.max_other).nonzero()[:, 0]
    if len(tied):
        first = (z[tied] == out.max_other[tied, None]).to(torch.uint8).argmax(1)
        out.is_top1[tied] = targets[tied, 0] < first
