"""Causal attention in a batch of concatenated rows, without attention across rows.

Query i attends to key j of the same row if j <= i. With a window, i - j must also be less than the
window. If the row has a prefix (segments.py), i and j count from the first token of the prefix.

    s_ij = scale * q_i . k_j          with a soft cap: softcap * tanh(scale * q_i . k_j / softcap)
    o_i  = sum_j softmax_j(s_ij) v_j

The forward pass does not save the probabilities p = softmax(s). The backward pass recomputes p tile
by tile (https://arxiv.org/abs/2307.08691, section 3.1), and computes the gradients:

    dv = p' do           ds = p (dp - rowsum(dp p)) with dp = do v'
    dq = scale ds k      dk = scale ds' q

On a CPU, a tile is a block of queries. Query heads that share a key/value head are stacked, so one
matrix product computes the scores of all these heads. On a GPU, torch's varlen kernels compute
attention. Calls that the varlen kernels do not support (fp32, soft caps) are computed tile by tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .attention_varlen import varlen_attention, why_not_varlen, why_not_varlen_here
from .rope import rope, rope_
from .segments import AttentionShape, Segments
from .tiles import wide

__all__ = [
    "segment_attention",
    "segment_attention_reference",
    "tile_size",
    "why_tiles",
]


def segment_attention(
    qkv: torch.Tensor,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    segments: Segments,
    shape: AttentionShape,
) -> torch.Tensor:
    """Apply RoPE to q and k, then compute attention. Return a tensor [T, heads * head_dim].

    `qkv`: one tensor [T, (heads + 2 kv_heads) head_dim] that contains q, k and v. RoPE
    **overwrites** q and k in `qkv`. Therefore, the operation that produced `qkv` must not save
    `qkv` for its backward pass. `cos` and `sin`: fp32 tensors [T, R / 2] for each token's position
    in its row; None for no RoPE.
    """
    if why_tiles(qkv, shape) is None:
        return _on_gpu(qkv, cos, sin, segments, shape)
    result: torch.Tensor = _SegmentAttention.apply(  # type: ignore[no-untyped-call]  # untyped in torch
        qkv, cos, sin, segments, shape
    )
    return result


def why_tiles(qkv: torch.Tensor, shape: AttentionShape) -> str | None:
    """Return the reason why torch's varlen kernels cannot compute this call; None if they can."""
    return why_not_varlen_here(qkv.device) or why_not_varlen(qkv.dtype, shape)


def segment_attention_reference(
    qkv: torch.Tensor,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    segments: Segments,
    shape: AttentionShape,
) -> torch.Tensor:
    """Compute attention with one dense score matrix per row. The arguments are not changed."""
    q, k, v = _split(qkv, shape)
    if cos is not None and sin is not None:
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
    groups = shape.heads // shape.kv_heads
    outputs = []
    for row in segments.segments():
        own, prefix = slice(row.start, row.stop), slice(row.prefix_start, row.prefix_stop)
        q_htd = q[own].transpose(0, 1)
        k_htd, v_htd = (
            torch.cat([x[prefix], x[own]]).repeat_interleave(groups, dim=1).transpose(0, 1)
            for x in (k, v)
        )
        scores = q_htd @ k_htd.transpose(1, 2) * shape.scale
        if shape.softcap is not None:
            scores = torch.tanh(scores / shape.softcap) * shape.softcap
        index = torch.arange(k_htd.shape[1], device=qkv.device)
        distance = index[row.prefix :, None] - index[None, :]
        hidden = (distance < 0) | (distance >= (shape.window or len(index)))
        scores = scores.to(wide(scores.dtype)).masked_fill(hidden, float("-inf"))
        weights = scores.softmax(-1).to(v.dtype)
        outputs.append((weights @ v_htd).transpose(0, 1).flatten(1))
    return torch.cat(outputs) if outputs else qkv[:, : shape.heads * shape.head_dim]


def _split(
    qkv: torch.Tensor, shape: AttentionShape
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    heads = qkv.unflatten(-1, (-1, shape.head_dim))
    q, k, v = heads.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
    return q, k, v


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    c, s = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    return torch.cat([first * c - second * s, second * c + first * s, rest], dim=-1)


def _on_gpu(
    qkv: torch.Tensor,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    segments: Segments,
    shape: AttentionShape,
) -> torch.Tensor:
    q, k, v = _split(qkv, shape)
    if cos is not None and sin is not None:
        q, k = rope(q, k, cos, sin)
    return varlen_attention(q, k, v, segments, shape).flatten(1)


class _SegmentAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        qkv: torch.Tensor,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        segments: Segments,
        shape: AttentionShape,
    ) -> torch.Tensor:
        if cos is not None and sin is not None:
            # Autograd raises an error if the operation that produced qkv has saved it for backward.
            rope_(_rotated_heads(qkv, shape), cos, sin)
        q, k, v = _split(qkv, shape)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for tile in _tiles(segments, shape, qkv):
            probabilities = _probabilities(q, _seen(k, tile), tile, shape)[0]
            values = _seen(v, tile).transpose(0, 1)
            out[tile.queries] = _unstacked(torch.bmm(probabilities, values), tile, shape)
        ctx.save_for_backward(qkv, cos, sin)
        ctx.segments, ctx.shape = segments, shape
        return out.flatten(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: torch.Tensor) -> Any:
        qkv, cos, sin = ctx.saved_tensors
        shape: AttentionShape = ctx.shape
        q, k, v = _split(qkv, shape)
        d_out = d_out.unflatten(-1, (-1, shape.head_dim))
        d_qkv = torch.empty_like(qkv, memory_format=torch.contiguous_format)
        d_q, d_k, d_v = _split(d_qkv, shape)
        # Sum over tiles in at least fp32. The GEMMs need the layout [KV, T, D].
        size = (shape.kv_heads, qkv.shape[0], shape.head_dim)
        k_sum = qkv.new_zeros(size, dtype=wide(qkv.dtype))
        v_sum = torch.zeros_like(k_sum)
        for tile in _tiles(ctx.segments, shape, qkv):
            keys = _seen(k, tile)
            p, queries, slope = _probabilities(q, keys, tile, shape)
            d_rows = _stacked(d_out, tile, shape)
            d_p = torch.bmm(d_rows, _seen(v, tile).permute(1, 2, 0))
            _add_seen(v_sum, torch.bmm(p.transpose(1, 2), d_rows), tile)
            d_s = torch._softmax_backward_data(d_p, p, -1, p.dtype)
            if slope is not None:
                d_s.mul_(slope)
            d_rows = torch.bmm(d_s, keys.transpose(0, 1)).mul_(shape.scale)
            d_q[tile.queries] = _unstacked(d_rows, tile, shape)
            _add_seen(k_sum, torch.bmm(d_s.transpose(1, 2), queries), tile, shape.scale)
        d_k.copy_(k_sum.transpose(0, 1))
        d_v.copy_(v_sum.transpose(0, 1))
        if cos is not None:
            rope_(_rotated_heads(d_qkv, shape), cos, sin, inverse=True)
        return d_qkv, None, None, None, None


@dataclass(frozen=True, slots=True)
class _Tile:
    queries: slice
    keys: slice
    """Keys of the row that contains the queries."""
    prefix: slice | None = None
    """Keys of the prefix."""

    @property
    def rows(self) -> int:
        return int(self.queries.stop - self.queries.start)


def tile_size(dtype: torch.dtype, device: torch.device) -> int:
    """Return the number of queries in a tile."""
    if device.type == "cuda":
        return 512  # not measured; chosen for few launches and about 100 MB of scores
    return 128 if dtype == torch.bfloat16 else 64  # measured: docs/contributing/log


def _tiles(segments: Segments, shape: AttentionShape, qkv: torch.Tensor) -> Iterator[_Tile]:
    block = tile_size(qkv.dtype, qkv.device)
    for row in segments.segments():
        for start in range(row.start, row.stop, block):
            stop = min(start + block, row.stop)
            left = 0  # first key in the tile's window, counted from the start of the prefix
            if shape.window is not None:
                left = max(0, row.prefix + start - row.start - shape.window + 1)
            queries = slice(start, stop)
            if left >= row.prefix:
                yield _Tile(queries, slice(row.start + left - row.prefix, stop))
            else:
                prefix = slice(row.prefix_start + left, row.prefix_stop)
                yield _Tile(queries, slice(row.start, stop), prefix)


def _seen(x: torch.Tensor, tile: _Tile) -> torch.Tensor:
    own = x[tile.keys]
    return own if tile.prefix is None else torch.cat([x[tile.prefix], own])


def _add_seen(total: torch.Tensor, part: torch.Tensor, tile: _Tile, alpha: float = 1.0) -> None:
    if tile.prefix is not None:
        before = tile.prefix.stop - tile.prefix.start
        total[:, tile.prefix].add_(part[:, :before], alpha=alpha)
        part = part[:, before:]
    total[:, tile.keys].add_(part, alpha=alpha)


def _probabilities(
    q: torch.Tensor, keys: torch.Tensor, tile: _Tile, shape: AttentionShape
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return three tensors for a tile: the attention probabilities [KV, groups * rows, keys], the
    stacked queries, and the derivative of the soft cap (None without a soft cap)."""
    queries, seen = _stacked(q, tile, shape), len(keys)
    scores = torch.baddbmm(
        queries.new_empty(()), queries, keys.permute(1, 2, 0), beta=0, alpha=shape.scale
    )
    slope = None
    if shape.softcap is not None:
        bent = torch.tanh(scores / shape.softcap)
        slope = 1 - bent * bent
        scores = bent * shape.softcap
    by_query = scores.unflatten(1, (-1, tile.rows))
    # Only the last `rows` columns can hold keys after a query.
    by_query[..., seen - tile.rows :].add_(_later(tile.rows, scores.dtype, scores.device))
    if shape.window is not None and seen > shape.window:
        # Only the first `left` columns can hold keys before a query's window.
        left = seen - shape.window
        by_query[..., :left].add_(_left_behind(tile.rows, left, scores.dtype, scores.device))
    return torch.softmax(scores, -1), queries, slope


@lru_cache(maxsize=256)
def _later(rows: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a mask that is -inf for keys after the query, else 0."""
    mask = torch.full((rows, rows), float("-inf"), dtype=dtype, device=device)
    return mask.triu_(1)


@lru_cache(maxsize=256)
def _left_behind(rows: int, keys: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a mask that is -inf for keys before the query's window, else 0."""
    mask = torch.full((rows, keys), float("-inf"), dtype=dtype, device=device)
    return mask.tril_(keys - rows)


def _stacked(x: torch.Tensor, tile: _Tile, shape: AttentionShape) -> torch.Tensor:
    groups: torch.Tensor = x[tile.queries].unflatten(1, (shape.kv_heads, -1))
    return groups.permute(1, 2, 0, 3).flatten(1, 2)


def _unstacked(x: torch.Tensor, tile: _Tile, shape: AttentionShape) -> torch.Tensor:
    groups: torch.Tensor = x.unflatten(1, (-1, tile.rows))
    return groups.permute(2, 0, 1, 3).flatten(1, 2)


def _rotated_heads(qkv: torch.Tensor, shape: AttentionShape) -> torch.Tensor:
    heads: torch.Tensor = qkv.unflatten(-1, (-1, shape.head_dim))
    return heads[:, : shape.rotated]
