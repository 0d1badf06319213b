"""Look up token embeddings with PEFT's trainable token rows, without copying the whole matrix.

PEFT's forward copies the whole matrix in every call, and its backward allocates a gradient of the
same size. head.py handles the trained rows of the head.
"""

from __future__ import annotations

import types
from typing import Any
from weakref import WeakKeyDictionary

import torch
from peft.tuners.trainable_tokens import TrainableTokensLayer
from peft.utils import TrainableTokensWrapper
from torch.nn.functional import embedding

from tunesmith_kernels.head_chunks import TrainedRows

from .projections import Unsupported

Untyped = Any  # Any: transformers and peft are not typed


class TokenRowsPatch:
    """Patch of the lookup in the input embedding."""

    def __init__(self, wrapper: Untyped) -> None:
        """Raises Unsupported."""
        self._layer = layer = wrapper.token_adapter
        base = layer.get_base_layer()
        if not isinstance(base, torch.nn.Embedding):
            raise Unsupported(f"{type(base).__name__} is not an embedding")
        if base.max_norm is not None or base.sparse or base.scale_grad_by_freq:
            raise Unsupported("an embedding with max_norm, sparse or scale_grad_by_freq")
        if base.weight.requires_grad:
            raise Unsupported("the embedding matrix is trained too")
        stock = layer.forward

        def forward(this: Untyped, x: torch.Tensor, *args: Untyped, **kwargs: Untyped) -> Untyped:
            if this is not layer:
                raise RuntimeError(
                    "this is a copy of a patched model: undo the patches before copying a model"
                )
            rows = trained_rows(layer)
            return stock(x, *args, **kwargs) if rows is None else look_up(layer, base, x, rows)

        layer.forward = types.MethodType(forward, layer)

    def undo(self) -> None:
        self._layer.__dict__.pop("forward", None)


def has_token_rows(module: Untyped) -> bool:
    return isinstance(module, TrainableTokensWrapper)


def trained_rows(layer: TrainableTokensLayer) -> TrainedRows | None:
    """Return the trained rows of the active adapter.

    Returns None if the adapter is merged or if not exactly one adapter is active."""
    if layer.disable_adapters or layer.merged or len(layer.active_adapters) != 1:
        return None
    (name,) = layer.active_adapters
    if name not in layer.trainable_tokens_delta:
        return None
    values = layer.trainable_tokens_delta[name]
    return TrainedRows(_ids(layer, name, values.device), values)


def _ids(layer: TrainableTokensLayer, name: str, device: torch.device) -> torch.Tensor:
    """Return the ids of a layer's trained tokens, [k], on the device. The first call copies the
    ids; later calls need no copy."""
    indices: list[int] = layer.token_indices[name]
    cached = _DEVICE_IDS.get(layer)
    if cached is None or cached[0] is not indices or cached[1].device != device:
        cached = _DEVICE_IDS[layer] = indices, torch.tensor(indices, device=device)
    return cached[1]


_DEVICE_IDS: WeakKeyDictionary[torch.nn.Module, tuple[list[int], torch.Tensor]] = (
    WeakKeyDictionary()
)
"""Ids of each layer's trained tokens: PEFT's list, and the same ids as a tensor on the device."""


def look_up(
    layer: TrainableTokensLayer, base: torch.nn.Embedding, x: torch.Tensor, rows: TrainedRows
) -> torch.Tensor:
    """Return the embeddings [..., H] of token ids x [...]."""
    ids, order = rows.ids.sort()
    index = torch.searchsorted(ids, x).clamp_(max=len(ids) - 1)
    is_trained = ids[index] == x
    values = embedding(order[index], rows.values.to(base.weight.dtype))
    if base.padding_idx is not None:  # torch computes no gradient for the padding token's row
        values = torch.where((x == base.padding_idx)[..., None], values.detach(), values)
    result = torch.where(is_trained[..., None], values, embedding(x, base.weight))
    scale = layer._get_embed_scale()
    return result if scale is None else result * scale.to(result.dtype)
