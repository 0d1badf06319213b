"""Register our attention in transformers' attention registry.

A forward call with `segments` (the boundaries of packed rows) runs our attention and builds no
mask. All other forward calls (padded rows, generation with a cache) run the model's previous
attention with its mask.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from tunesmith_kernels.attention import segment_attention
from tunesmith_kernels.segments import AttentionShape, Segments

Untyped = Any  # Any: transformers is not typed

_NAME = "tunesmith_over_"
NO_MASK = torch.empty(1, 1, 0, 0)
"""Placeholder attention mask, passed with `segments` so that the model builds no mask. transformers
leaves a four-dimensional mask unchanged, and our attention ignores it. If the mask were None,
transformers would look for packed rows, and the host would wait for the device."""


def register_segment_attention(stock: str) -> str:
    """Register our attention with `stock` as fallback and return its registered name.

    Raises ValueError if `stock` is already our attention."""
    if stock.startswith(_NAME):
        raise ValueError("the model is already patched: undo its patches first")
    name = _NAME + stock
    AttentionInterface.register(name, _attention_over(stock))
    masks = AttentionMaskInterface()
    if stock in masks.valid_keys():
        AttentionMaskInterface.register(name, masks[stock])
    return name


def reads_segments(model: Untyped) -> bool:
    """Return True if this causal language model uses our attention and so supports packed rows."""
    return str(model.base_model.config._attn_implementation).startswith(_NAME)


def _attention_over(stock: str) -> Untyped:
    def attention(
        module: Untyped,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        segments: Segments | None = None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        **kwargs: Untyped,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute attention: query [1, H, T, D]; key, value [1, KV, T, D].

        Returns the output [1, T, H, D] and the attention weights, which are None for our
        attention."""
        if segments is None:
            kwargs |= {"scaling": scaling, "sliding_window": sliding_window, "softcap": softcap}
            stock_kwargs = {name: value for name, value in kwargs.items() if value is not None}
            result: tuple[torch.Tensor, torch.Tensor | None] = _stock(stock, module)(
                module, query, key, value, attention_mask, **stock_kwargs
            )
            return result
        shape = AttentionShape(
            heads=query.shape[1],
            kv_heads=key.shape[1],
            head_dim=query.shape[3],
            scale=query.shape[3] ** -0.5 if scaling is None else scaling,
            window=sliding_window,
            softcap=softcap,
        )
        qkv = torch.cat([query[0], key[0], value[0]]).transpose(0, 1).flatten(1)
        out = segment_attention(qkv, None, None, segments, shape)
        return out.unflatten(1, (shape.heads, shape.head_dim)).unsqueeze(0), None

    return attention


def _stock(stock: str, module: Untyped) -> Untyped:
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    return AttentionInterface().get_interface(stock, eager)
