"""Forward passes of a rollout: prefill of whole prompts, and decode steps with one token per row.

Prefill and decode steps compute the same function as the training forward, with the adapter merged
into the weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from tunesmith_kernels.attention import segment_attention
from tunesmith_kernels.gated_activation import Activation, gated_forward
from tunesmith_kernels.rope import rope_
from tunesmith_kernels.segments import Segments

from .architecture import Architecture
from .attention import StepAttention
from .cache import Prefix, RowCache
from .rope_tables import RopeTables
from .weights import DecoderWeights, LayerWeights

RowRangeTable = tuple[int, int, torch.Tensor]
"""RoPE table for a range of rows: the first row, the row after the last one, and
`RopeTable.doubled` [P, 2, R]."""
RowTables = dict[str | None, list[RowRangeTable]]
"""RoPE tables by `LayerSpec.layer_type`."""


def cache_dtype(model: Architecture) -> torch.dtype:
    """Return the dtype of cached keys and values.

    On a CPU the dtype is fp32, because bf16 products with few rows take up to three times as long
    as fp32 products."""
    return torch.float32 if model.device.type == "cpu" else model.dtype


class Decoder:
    def __init__(
        self, model: Architecture, weights: DecoderWeights, rope_tables: RopeTables
    ) -> None:
        self._model, self._weights, self._rope_tables = model, weights, rope_tables
        self._cache_dtype = cache_dtype(model)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[Prefix]:
        """Compute several sequences in one forward pass, without attention across sequences."""
        lengths = [len(prompt) for prompt in prompts]
        rope_keys = [self._rope_tables.rope_key(length) for length in lengths]
        segments = Segments.from_lengths(lengths, device=self._model.device)
        ids = torch.tensor([i for prompt in prompts for i in prompt], device=self._model.device)
        tables = {
            name: self._prompt_table(name, rope_keys, lengths)
            for name in {layer.layer_type for layer in self._model.layers}
        }
        x = self._weights.embed(ids)
        cached = []
        for layer in self._weights.layers:
            shape = layer.spec.shape
            qkv = self._qkv(layer, x)
            heads = qkv.unflatten(1, (-1, shape.head_dim))
            if layer.spec.rope:
                rope_(heads[:, : shape.rotated], *tables[layer.spec.layer_type])
            # Copy k and v, because the attention may overwrite qkv.
            kv = heads[:, shape.heads :].to(self._cache_dtype, copy=True)
            cached.append(kv.unflatten(1, (2, shape.kv_heads)).permute(1, 2, 0, 3))  # [2, KV, T, D]
            out = segment_attention(qkv, None, None, segments, shape)
            x = self._mlp(layer, self._add(layer, x, out))
        ends = torch.tensor(segments.bounds[1:], device=x.device) - 1
        logits = self._logits(x[ends])
        whole = torch.stack(cached)  # [L, 2, KV, T, D]
        bounds = segments.bounds
        return [
            Prefix(
                length=lengths[i],
                rope_key=rope_keys[i],
                keys=whole[:, 0, :, bounds[i] : bounds[i + 1]].contiguous(),
                values=whole[:, 1, :, bounds[i] : bounds[i + 1]].contiguous(),
                logits=logits[i],
            )
            for i in range(len(prompts))
        ]

    @property
    def reserves_room(self) -> bool:
        """True if the cache should reserve space for later tokens when it gets new rows."""
        return False

    def step(self, ids: torch.Tensor, cache: RowCache) -> torch.Tensor:
        """Process each row's newest token, and cache its keys and values.

        `ids`: ids of the newest tokens, [B]. Returns the next logits, [B, V] in fp32."""
        cache.make_room()
        logits = self.device_step(ids, cache, self.row_tables(cache))
        cache.advance()
        return logits

    def device_step(
        self,
        ids: torch.Tensor,
        cache: RowCache,
        tables: RowTables,
        lengths: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute a step on the device; the cache must have space for the new tokens.

        `lengths` [B], if given, holds each row's number of cached tokens on the device. With
        `lengths`, a CUDA graph can record the step. The recording is valid until the cache replaces
        its tensors.
        """
        write = cache.writer(lengths)
        attend = StepAttention(cache, self._model.layers[0].shape, lengths)
        positions = cache.prompt_lengths + (cache.lengths_tensor() if lengths is None else lengths)
        angles = {name: self._angles(runs, positions) for name, runs in tables.items()}
        x = self._weights.embed(ids)
        for number, layer in enumerate(self._weights.layers):
            shape = layer.spec.shape
            qkv = self._qkv(layer, x)
            if qkv.dtype != self._cache_dtype:
                qkv = qkv.to(self._cache_dtype)
            heads = qkv.view(len(qkv), -1, shape.head_dim)
            if layer.spec.rope:
                rotate_(heads[:, : shape.rotated], *angles[layer.spec.layer_type])
            write(number, heads[:, shape.heads :])
            out = attend(heads[:, : shape.heads], number, shape)
            x = self._mlp(layer, self._add(layer, x, out.to(x.dtype)))
        return self._logits(x)

    def row_tables(self, cache: RowCache) -> RowTables:
        """Return RoPE tables for all token positions that fit in `cache`."""
        runs: list[tuple[int, int, int]] = []
        longest = max(prefix.length for prefix, _, _ in cache.spans) + cache.room
        for prefix, start, stop in cache.spans:
            if runs and runs[-1][0] == prefix.rope_key:
                start = runs.pop()[1]
            runs.append((prefix.rope_key, start, stop))
        return {
            name: [
                (start, stop, self._rope_tables.table(name, rope_key, longest).doubled)
                for rope_key, start, stop in runs
            ]
            for name in {layer.layer_type for layer in self._model.layers}
        }

    def release(self) -> None:
        """Free the memory that a subclass keeps between steps; this class keeps none."""

    def _qkv(self, layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        """Return qkv [N, (H + 2 KV) D]; q and k are normalised if the layer has norms for them."""
        qkv = layer.qkv(x if layer.before_attention is None else layer.before_attention(x))
        if layer.q_norm is None or layer.k_norm is None:
            return qkv
        shape = layer.spec.shape
        sizes = [n * shape.head_dim for n in (shape.heads, shape.kv_heads, shape.kv_heads)]
        q, k, v = qkv.split(sizes, dim=1)
        norms = (layer.spec.q_norm, layer.q_norm, q), (layer.spec.k_norm, layer.k_norm, k)
        normed = []
        for spec, norm, part in norms:
            width = 0 if spec is None else len(spec.module.weight)  # one or all heads
            normed.append(norm(part.unflatten(1, (-1, width))).flatten(1))
        return torch.cat([*normed, v], dim=1)

    def _add(self, layer: LayerWeights, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        multiplier = layer.spec.residual_multiplier
        if layer.after_attention is None and multiplier == 1.0:
            return layer.out.add_to(x, out)
        y = layer.out(out)
        y = y if layer.after_attention is None else layer.after_attention(y)
        return x + y * multiplier

    def _mlp(self, layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        gate_up = layer.gate_up(x if layer.before_mlp is None else layer.before_mlp(x))
        inner = _gated(gate_up, layer.spec.activation)
        multiplier = layer.spec.residual_multiplier
        if layer.after_mlp is None and multiplier == 1.0:
            return layer.down.add_to(x, inner)
        y = layer.down(inner)
        y = y if layer.after_mlp is None else layer.after_mlp(y)
        return x + y * multiplier

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return self._scaled(self._weights.head(self._weights.norm(x)))

    def _scaled(self, logits: torch.Tensor) -> torch.Tensor:
        scale, softcap = self._model.logit_scale, self._model.softcap
        if scale != 1.0:
            logits = logits * scale
        if softcap is not None:
            logits = torch.tanh(logits / softcap) * softcap
        return logits.float()

    def _prompt_table(
        self, name: str | None, rope_keys: Sequence[int], lengths: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin [T, R/2] for the concatenated sequences."""
        parts = []
        for rope_key, length in zip(rope_keys, lengths, strict=True):
            table = self._rope_tables.table(name, rope_key, length)
            parts.append((table.cos[:length], table.sin[:length]))
        return torch.cat([cos for cos, _ in parts]), torch.cat([sin for _, sin in parts])

    def _angles(
        self, runs: Sequence[RowRangeTable], positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `[cos | cos]` and `[-sin | sin]` for `positions` [B], each of shape [B, 1, R]."""
        picked = [
            # An ended row may stay in the batch and reach positions beyond the table's end.
            table[positions[start:stop].clamp(max=len(table) - 1)]
            for start, stop, table in runs
        ]
        pair = (picked[0] if len(picked) == 1 else torch.cat(picked)).to(self._cache_dtype)
        return pair[:, :1], pair[:, 1:]


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate x [B, n, D] in place, with fewer operations than tunesmith_kernels.rope.

    The first R elements of each head, `[a | b]`, become `[a | b] [cos | cos] + [b | a] [-sin |
    sin]`."""
    size = cos.shape[-1]
    x = x[..., :size]
    swapped = torch.cat([x[..., size // 2 :], x[..., : size // 2]], -1)
    x.copy_(swapped.mul_(sin).addcmul_(x, cos))


def _gated(gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
    if gate_up.is_cuda or activation != "silu":
        return gated_forward(gate_up, activation)
    size = gate_up.shape[1] // 2
    return F.silu(gate_up[:, :size]).mul_(gate_up[:, size:])
