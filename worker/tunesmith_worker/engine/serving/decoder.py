"""Forward pass of one step of the serving engine.

The model reads the newest token of each decoding row (a request that generates tokens), and parts
of the prompts of new requests. For each weight, one matrix product computes all tokens of a step.
Attention is computed once for all decoding rows, and once for each part of a prompt.

Shapes: B decoding rows, T tokens in the step (B, then the tokens of the parts), H heads, KV
key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from tunesmith_kernels.segments import AttentionShape
from tunesmith_worker.engine.rollout.architecture import Architecture
from tunesmith_worker.engine.rollout.decoder import Decoder, cache_dtype, rotate_
from tunesmith_worker.engine.rollout.rope_tables import RopeTables

from .cache import CacheShape, PromptBuffer, SlotCache
from .prompt_scores import PromptScores
from .token_rows import TokenRows
from .weights import ServingWeights


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens of a prompt that are computed in this step."""

    ids: Sequence[int]
    start: int
    """Position of the first token. The keys and values of the earlier tokens are in `buffer`."""
    buffer: PromptBuffer
    rope_key: int
    adapter: str | None
    needs_logits: bool
    """True if the part has the last token of its sequence."""
    scores: PromptScores | None = None
    """Log-probs of the prompt; None if the request does not ask for them."""


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """Newest token of a request that generates tokens. The index of a `DecodeRow` in the argument
    of `ServingDecoder.run` is the request's slot in the cache."""

    token: int
    rope_key: int
    adapter: str | None


class ServingDecoder(Decoder):
    def __init__(self, model: Architecture, weights: ServingWeights, tables: RopeTables) -> None:
        super().__init__(model, weights.decoder, tables)
        self._bank = weights.bank
        self.token_rows = TokenRows(model.device)
        shape = model.layers[0].shape
        self.cache_shape = CacheShape(
            layers=len(model.layers),
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            dtype=cache_dtype(model),
            device=model.device,
        )

    def run(
        self, rows: Sequence[DecodeRow], cache: SlotCache, parts: Sequence[Part]
    ) -> torch.Tensor:
        """Compute a step, and cache its keys and values.

        Returns the next logits in fp32, [N, V]: first the logits of the requests that generate
        tokens, then the logits of the prompt parts that need logits.
        """
        device = self._model.device
        adapters = [row.adapter for row in rows]
        ids = [row.token for row in rows]
        bounds = [len(rows)]
        for part in parts:
            ids += part.ids
            adapters += [part.adapter] * len(part.ids)
            bounds.append(len(ids))
        self._bank.start_step(adapters)
        self.token_rows.start_step(adapters)
        token_ids = torch.tensor(ids, device=device)
        angles = self._step_angles(rows, cache, parts)
        decode = _Decode(cache, self._model.layers[0].shape) if rows else None
        masks = _PartMasks(device)
        x = self.token_rows.embed(token_ids, self._weights.embed(token_ids))
        for number, layer in enumerate(self._weights.layers):
            shape = layer.spec.shape
            qkv = self._qkv(layer, x).to(self._cache_dtype)
            heads = qkv.view(len(qkv), -1, shape.head_dim)
            if layer.spec.rope:
                rotate_(heads[:, : shape.rotated], *angles[layer.spec.layer_type])
            outs = []
            if decode is not None:
                outs.append(decode(heads[: len(rows)], number, shape))
            for part, start, stop in zip(parts, bounds[:-1], bounds[1:], strict=True):
                outs.append(_attend_part(heads[start:stop], part, number, shape, masks))
            out = outs[0] if len(outs) == 1 else torch.cat(outs)
            x = self._mlp(layer, self._add(layer, x, out.to(x.dtype)))
        if rows:
            cache.advance()
        for part, start, stop in zip(parts, bounds[:-1], bounds[1:], strict=True):
            if part.scores is not None:
                self._score(part.scores, part, x[start:stop])
        ends = [stop - 1 for part, stop in zip(parts, bounds[1:], strict=True) if part.needs_logits]
        kept = [*range(len(rows)), *ends]
        if not kept:
            return torch.empty(0, self._model.vocabulary, device=device)
        if len(kept) < len(ids):
            x = x[torch.tensor(kept, device=device)]
        return self._logits(x, [adapters[i] for i in kept])

    def _score(self, scores: PromptScores, part: Part, x: torch.Tensor) -> None:
        """Compute log-probs from the last hidden states x [n, hidden] of a part, and add the
        log-probs to the part's scores."""

        def logits_of(positions: slice) -> torch.Tensor:
            own = x[positions]
            return self._logits(own, [part.adapter] * len(own))

        scores.add(logits_of, part.start, len(x))

    def _logits(self, x: torch.Tensor, adapters: Sequence[str | None] = ()) -> torch.Tensor:
        normed = self._weights.norm(x)
        logits = self.token_rows.head(normed, self._weights.head(normed), adapters)
        return self._scaled(logits)

    def _step_angles(
        self, rows: Sequence[DecodeRow], cache: SlotCache, parts: Sequence[Part]
    ) -> dict[str | None, tuple[torch.Tensor, torch.Tensor]]:
        """Return the RoPE tables `[cos | cos]` and `[-sin | sin]` of all tokens, each [T, 1, R]. R:
        number of rotated elements per head. The keys are layer types."""
        runs: list[tuple[int, list[int]]] = []
        for row, position in zip(rows, cache.lengths, strict=True):
            if not runs or runs[-1][0] != row.rope_key:
                runs.append((row.rope_key, []))
            runs[-1][1].append(position)
        for part in parts:
            runs.append((part.rope_key, list(range(part.start, part.start + len(part.ids)))))
        angles = {}
        for name in {layer.layer_type for layer in self._model.layers}:
            picked = []
            for rope_key, positions in runs:
                table = self._rope_tables.table(name, rope_key, max(positions) + 1).doubled
                picked.append(table[torch.tensor(positions, device=table.device)])
            pair = (picked[0] if len(picked) == 1 else torch.cat(picked)).to(self._cache_dtype)
            angles[name] = pair[:, :1], pair[:, 1:]
        return angles


class _Decode:
    """Attention of all requests that generate tokens, in one step."""

    def __init__(self, cache: SlotCache, shape: AttentionShape) -> None:
        self._cache = cache
        cache.reserve(cache.rows, max(cache.lengths) + 1)
        self._index = cache.write_index()
        self._masks: dict[int | None, torch.Tensor] = {}

    def __call__(self, heads: torch.Tensor, layer: int, shape: AttentionShape) -> torch.Tensor:
        """Cache the new keys and values, and return the attention [B, H D].

        `heads` [B, H + 2 KV, D]: queries, keys and values of H query heads and KV key heads."""
        rows, d = len(heads), shape.head_dim
        new = heads[:, shape.heads :].reshape(-1, d)
        self._cache.flat(layer).index_copy_(0, self._index, new)
        keys, values = self._cache.layer(layer)  # [B KV, T, D]
        group = shape.heads // shape.kv_heads
        q = heads[:, : shape.heads].reshape(rows * shape.kv_heads, group, d)
        mask = self._mask(shape)
        if shape.softcap is None:
            scores = torch.baddbmm(mask, q, keys.transpose(1, 2), alpha=shape.scale)
        else:
            scores = torch.bmm(q, keys.transpose(1, 2)).mul_(shape.scale / shape.softcap)
            scores.tanh_().mul_(shape.softcap).add_(mask)
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(values.dtype)
        return torch.bmm(weights, values).view(rows, shape.heads * d)

    def _mask(self, shape: AttentionShape) -> torch.Tensor:
        """Return a mask [B KV, 1, T] with 0 for visible keys and -inf for hidden keys."""
        if shape.window not in self._masks:
            newest = torch.tensor(self._cache.lengths)[:, None]
            column = torch.arange(int(newest.max()) + 1)[None]
            hidden = column > newest
            if shape.window is not None:
                hidden |= column <= newest - shape.window
            mask = torch.zeros(hidden.shape, dtype=torch.float32).masked_fill_(hidden, -torch.inf)
            kv = self._cache.layer(0)[0]
            mask = mask.to(kv).repeat_interleave(shape.kv_heads, 0)[:, None]
            self._masks[shape.window] = mask
        return self._masks[shape.window]


class _PartMasks:
    """Attention masks for the prompt parts of one step.

    Layers with the same window share a mask.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._masks: dict[tuple[int, int, int | None], torch.Tensor] = {}

    def get(self, start: int, count: int, window: int | None) -> torch.Tensor:
        key = (start, count, window)
        if key not in self._masks:
            query = torch.arange(start, start + count, device=self._device)[:, None]
            column = torch.arange(start + count, device=self._device)[None]
            visible = column <= query
            if window is not None:
                visible &= column > query - window
            self._masks[key] = visible
        return self._masks[key]


def _attend_part(
    heads: torch.Tensor, part: Part, layer: int, shape: AttentionShape, masks: _PartMasks
) -> torch.Tensor:
    count, stop = len(heads), part.start + len(heads)
    kv = part.buffer.kv[layer]
    new = heads[:, shape.heads :].unflatten(1, (2, shape.kv_heads)).permute(1, 2, 0, 3)
    kv[:, :, part.start : stop] = new
    keys, values = kv[0, :, :stop], kv[1, :, :stop]
    q = heads[:, : shape.heads].transpose(0, 1)  # [H, n, D]
    mask = masks.get(part.start, count, shape.window)
    if shape.softcap is None:
        out = F.scaled_dot_product_attention(
            q[None], keys[None], values[None], mask, scale=shape.scale, enable_gqa=True
        )[0]
    else:
        group = shape.heads // shape.kv_heads
        grouped = q.reshape(shape.kv_heads, group * count, -1)
        scores = torch.bmm(grouped, keys.transpose(1, 2)).mul_(shape.scale / shape.softcap)
        scores = scores.tanh_().mul_(shape.softcap).unflatten(1, (group, count))
        weights = scores.masked_fill_(~mask, -torch.inf).softmax(-1, torch.float32)
        out = torch.bmm(weights.to(values.dtype).flatten(1, 2), values)
        out = out.view(shape.heads, count, -1)
    return out.transpose(0, 1).reshape(count, -1)
