"""PEFT's trainable token rows, put over what was looked up: PEFT's own forward copies the whole
matrix each time, and its backward makes a gradient as large. The head's rows are in head.py.
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
    """The input embedding's lookup."""

    def __init__(self, wrapper: Untyped) -> None:
        """Raises Unsupported."""
        self._layer = layer = wrapper.token_adapter
        base = layer.get_base_layer()
        if not isinstance(base, torch.nn.Embedding):
            raise Unsupported(f"{type(base).__name__} is not an embedding")
        if base.max_norm is not None or base.sparse or base.scale_grad_by_freq:
            raise Unsupported("an embedding that is more than a lookup")
        if base.weight.requires_grad:
            raise Unsupported("the matrix trains too")
        stock = layer.forward

        def forward(this: Untyped, x: torch.Tensor, *args: Untyped, **kwargs: Untyped) -> Untyped:
            if this is not layer:
                raise RuntimeError("a copy of a patched model: undo its patches before copying it")
            rows = trained_rows(layer)
            return stock(x, *args, **kwargs) if rows is None else look_up(layer, base, x, rows)

        layer.forward = types.MethodType(forward, layer)

    def undo(self) -> None:
        self._layer.__dict__.pop("forward", None)


def has_token_rows(module: Untyped) -> bool:
    return isinstance(module, TrainableTokensWrapper)


def trained_rows(layer: TrainableTokensLayer) -> TrainedRows | None:
    """The rows of the one adapter that is active; None where none is, several are, or they are
    merged into the matrix."""
    if layer.disable_adapters or layer.merged or len(layer.active_adapters) != 1:
        return None
    (name,) = layer.active_adapters
    if name not in layer.trainable_tokens_delta:
        return None
    values = layer.trainable_tokens_delta[name]
    return TrainedRows(_ids(layer, name, values.device), values)


def _ids(layer: TrainableTokensLayer, name: str, device: torch.device) -> torch.Tensor:
    """[k], sent to the device once: a step must not wait for it."""
    indices: list[int] = layer.token_indices[name]
    kept = _DEVICE_IDS.get(layer)
    if kept is None or kept[0] is not indices or kept[1].device != device:
        kept = _DEVICE_IDS[layer] = indices, torch.tensor(indices, device=device)
    return kept[1]


_DEVICE_IDS: WeakKeyDictionary[torch.nn.Module, tuple[list[int], torch.Tensor]] = (
    WeakKeyDictionary()
)
"""A layer's token ids as PEFT has them and as a tensor."""


def look_up(
    layer: TrainableTokensLayer, base: torch.nn.Embedding, x: torch.Tensor, rows: TrainedRows
) -> torch.Tensor:
    """x: [...] token ids. Returns [..., H]."""
    ids, order = rows.ids.sort()
    place = torch.searchsorted(ids, x).clamp_(max=len(ids) - 1)
    is_trained = ids[place] == x
    values = embedding(order[place], rows.values.to(base.weight.dtype))
    if base.padding_idx is not None:  # torch gives the padding's row no gradient
        values = torch.where((x == base.padding_idx)[..., None], values.detach(), values)
    found = torch.where(is_trained[..., None], values, embedding(x, base.weight))
    scale = layer._get_embed_scale()
    return found if scale is None else found * scale.to(found.dtype)
