"""Attention of a decode step: each row's new token attends to the row's prompt and completion.

The output is `o = softmax([q Kp' | q Ko'] scale) [Vp ; Vo]`.

`Kp` and `Vp` are the keys and values of the prompt; one matrix product computes all rows with the
same prompt. `Ko` and `Vo` are the keys and values of the row's completion. The columns of the
scores are the prompt's tokens, then the completion's tokens. Shapes use the symbols of cache.py,
and H heads, G = H / KV, P tokens in the longest prompt and T tokens in the longest completion.

All layers of a step share the same buffers and views. On a CPU, creating new buffers and views in
each layer would take about as long as the computation of attention.
"""

from __future__ import annotations

import torch

from tunesmith_kernels.segments import AttentionShape

from .cache import RowCache


class StepAttention:
    """Attention of one decode step. Layers may differ only in window, scale and soft cap."""

    def __init__(
        self, cache: RowCache, shape: AttentionShape, lengths: torch.Tensor | None = None
    ) -> None:
        """`cache` must have space for each row's new token; the cached lengths do not count that
        token.

        `lengths` [B], if given, is a tensor whose values may change between steps. With `lengths`,
        the object can be used for several steps, until the cache replaces its tensors. With
        `lengths`, attention also reads the whole cache and masks unused entries."""
        self._cache, self._lengths = cache, lengths
        self._prompt = max(prefix.length for prefix, _, _ in cache.spans)
        self._own = max(cache.lengths) + 1 if lengths is None else cache.room
        kv, d, rows = shape.kv_heads, shape.head_dim, cache.rows
        group = shape.heads // kv
        new = cache.layer(0).new_empty
        self._q = new(kv, rows, group, d)
        self._scores = new(kv, rows, group, self._prompt + self._own)
        self._weights = torch.empty_like(self._scores)
        self._out = new(kv, rows, group, d)
        self._q_rows, self._out_rows = self._q.flatten(0, 1), self._out.flatten(0, 1)
        self._own_scores = self._scores[..., self._prompt :]
        self._own_weights = self._weights[..., self._prompt :].flatten(0, 1)
        self._spans = []
        for prefix, start, stop in cache.spans:
            columns = (slice(None), slice(start, stop), slice(None), slice(0, prefix.length))
            rows_of = (slice(None), slice(start, stop))
            views = (
                self._q[rows_of].flatten(1, 2),
                self._scores[columns].flatten(1, 2),
                self._weights[columns].flatten(1, 2),
                self._out[rows_of].flatten(1, 2),
            )
            self._spans.append(views)
        self._masks: dict[int | None, torch.Tensor | None] = {}

    def __call__(self, q: torch.Tensor, layer: int, shape: AttentionShape) -> torch.Tensor:
        """Compute attention for rotated queries q [B, H, D]; returns [B, H D].

        The new keys and values must already be in the cache."""
        kv, rows, group, d = self._q.shape
        torch.mul(q.view(rows, kv, group, d).transpose(0, 1), shape.scale, out=self._q)
        keys, values = self._cache.layer(layer)[:, :, :, : self._own].flatten(1, 2)
        own = torch.bmm(self._q_rows, keys.transpose(1, 2))
        self._own_scores.copy_(own.view(kv, rows, group, -1))
        shared = self._cache.shared[layer]
        for (prompt_keys, _), (q_span, scores, _, _) in zip(shared, self._spans, strict=True):
            torch.bmm(q_span, prompt_keys, out=scores)
        if shape.softcap is not None:
            self._scores.div_(shape.softcap).tanh_().mul_(shape.softcap)
        mask = self._mask(shape.window)
        if mask is not None:
            self._scores.masked_fill_(mask, float("-inf"))
        if self._scores.dtype == torch.float32:
            torch.softmax(self._scores, -1, out=self._weights)
        else:
            self._weights.copy_(torch.softmax(self._scores, -1, dtype=torch.float32))
        torch.bmm(self._own_weights, values, out=self._out_rows)
        for (_, prompt_values), (_, _, weights, out) in zip(shared, self._spans, strict=True):
            out.baddbmm_(weights, prompt_values)
        return self._out.transpose(0, 1).reshape(rows, kv * group * d)

    def _mask(self, window: int | None) -> torch.Tensor | None:
        """Return a mask [B, 1, P + T] that is True for tokens that a row does not attend to; None
        if every row attends to all P + T tokens."""
        if window not in self._masks:
            self._masks[window] = self._build_mask(window)
        return self._masks[window]

    def _build_mask(self, window: int | None) -> torch.Tensor | None:
        cache = self._cache
        if self._lengths is None:
            prompts = [prefix.length for prefix, _, _ in cache.spans]
            equal_lengths = min(prompts) == self._prompt and min(cache.lengths) + 1 == self._own
            if equal_lengths and (window is None or self._prompt + self._own <= window):
                return None
        prompt = cache.prompt_lengths[:, None]
        own = (cache.lengths_tensor() if self._lengths is None else self._lengths)[:, None]
        column = torch.arange(self._prompt + self._own, device=prompt.device)[None]
        is_own = column >= self._prompt
        hidden = torch.where(is_own, column - self._prompt > own, column >= prompt)
        if window is not None:
            position = torch.where(is_own, column - self._prompt + prompt, column)
            hidden |= position <= prompt + own - window
        return hidden[:, None]
