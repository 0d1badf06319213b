"""Our attention behind transformers' registry, for every model whose attention asks it.

A forward that carries `segments` runs ours and builds no mask; any other one (padded rows,
generation with a cache) runs what the model had before, mask included.
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
"""Given to a model together with `segments`, keeps it from building a mask: one that has four
dimensions counts as built, and ours reads none. Given nothing, transformers looks for packed rows
by asking the device where positions restart."""


def register_segment_attention(stock: str) -> str:
    """Register ours in front of attention implementation `stock`; the name it goes by.

    Raises ValueError when `stock` is ours."""
    if stock.startswith(_NAME):
        raise ValueError("the model is patched already: undo that first")
    name = _NAME + stock
    AttentionInterface.register(name, _attention_over(stock))
    masks = AttentionMaskInterface()
    if stock in masks.valid_keys():
        AttentionMaskInterface.register(name, masks[stock])
    return name


def reads_segments(model: Untyped) -> bool:
    """Whether this causal language model's attention is ours, where rows may stand end to end."""
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
        """query: [1, H, T, D]; key, value: [1, KV, T, D]. Returns [1, T, H, D] and no weights."""
        if segments is None:
            kwargs |= {"scaling": scaling, "sliding_window": sliding_window, "softcap": softcap}
            given = {name: one for name, one in kwargs.items() if one is not None}
            result: tuple[torch.Tensor, torch.Tensor | None] = _stock(stock, module)(
                module, query, key, value, attention_mask, **given
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
