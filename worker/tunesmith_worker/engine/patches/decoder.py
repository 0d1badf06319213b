"""Patch decoder layers to run our kernels, and patch the backbone to pass the boundaries of packed
rows (`segments`) to the layers."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from tunesmith_kernels.segments import Segments

from .attention_interface import NO_MASK
from .batch_layout import current_layout
from .families import FAMILIES, Family
from .half_blocks import AttentionHalf, MLPHalf
from .projections import Unsupported
from .report import PatchReport

Untyped = Any  # Any: transformers is not typed

_CALL_RECOMPUTES = "__call__" in vars(GradientCheckpointingLayer)
"""True in transformers before 5.23, where a layer's `__call__` recomputes activations. From
transformers 5.23 on, the layer's forward recomputes activations. Our forward replaces the layer's
forward, so our forward must recompute activations too."""


class DecoderLayerPatch:
    """Patch of one decoder layer: our forward for packed rows, the stock forward for other
    batches."""

    def __init__(self, layer: Untyped, mechanisms: frozenset[str], report: PatchReport) -> None:
        """Raises Unsupported if the layer cannot be patched."""
        name = type(layer).__name__
        if "forward" in vars(layer) or layer._forward_hooks or layer._forward_pre_hooks:
            raise Unsupported(f"{name} has hooks or a replaced forward")
        self._layer, self._family = layer, FAMILIES[name]
        self._attention = _make_half("attention_block", AttentionHalf, layer, mechanisms, report)
        self._mlp = _make_half("mlp_block", MLPHalf, layer, mechanisms, report)
        if not self.has_half:
            return
        self.stock: Untyped = layer.forward
        """Stock forward, for batches that are not packed."""
        layer.forward = types.MethodType(_forward(self), layer)

    @property
    def has_half(self) -> bool:
        return self._attention is not None or self._mlp is not None

    def undo(self) -> None:
        self._layer.__dict__.pop("forward", None)
        for half in (self._attention, self._mlp):
            if half is not None:
                half.release()

    def run(self, x: torch.Tensor, segments: Segments, kwargs: dict[str, Untyped]) -> torch.Tensor:
        layer, family = self._layer, self._family
        normed = _apply(layer, family.before_attention, x) if family.parallel else None
        if self._attention is not None and self._attention.computes(segments):
            x = self._attention(x, kwargs["position_embeddings"], segments, normed)
        else:
            no_cache = {"segments": segments, "past_key_values": None}
            x = _stock_attention(layer, family, x, normed, kwargs | no_cache)
        mlp = functools.partial(_stock_mlp, layer, family) if self._mlp is None else self._mlp
        result: torch.Tensor = mlp(x, normed)
        return result


def _forward(patch: DecoderLayerPatch) -> Callable[..., torch.Tensor]:
    def forward(
        layer: Untyped,
        hidden_states: torch.Tensor,
        *args: Untyped,
        segments: Segments | None = None,
        **kwargs: Untyped,
    ) -> torch.Tensor:
        if segments is None:
            result: torch.Tensor = patch.stock(hidden_states, *args, **kwargs)
            return result
        if args:
            raise TypeError(
                f"{type(layer).__name__}: pass all arguments except hidden_states by keyword"
            )
        run = functools.partial(patch.run, segments=segments, kwargs=kwargs)
        if layer.gradient_checkpointing and layer.training and not _CALL_RECOMPUTES:
            checkpointed: torch.Tensor = layer._gradient_checkpointing_func(run, hidden_states)
            return checkpointed
        return run(hidden_states)

    return forward


def _make_half(
    name: str, half: Untyped, layer: Untyped, mechanisms: frozenset[str], report: PatchReport
) -> Untyped:
    if name not in mechanisms:
        return None
    try:
        patched = half(layer, FAMILIES[type(layer).__name__])
    except Unsupported as reason:
        report.add_unchanged(name, str(reason))
        return None
    report.add_patched(name)
    return patched


def _stock_attention(
    layer: Untyped,
    family: Family,
    x: torch.Tensor,
    normed: torch.Tensor | None,
    kwargs: dict[str, Untyped],
) -> torch.Tensor:
    h = _apply(layer, family.before_attention, x) if normed is None else normed
    y, _ = layer.self_attn(hidden_states=h, **kwargs)
    return x + _apply(layer, family.after_attention, y) * getattr(layer, "residual_multiplier", 1.0)


def _stock_mlp(
    layer: Untyped, family: Family, x: torch.Tensor, normed: torch.Tensor | None
) -> torch.Tensor:
    y = layer.mlp(_apply(layer, family.before_mlp, x) if normed is None else normed)
    return x + _apply(layer, family.after_mlp, y) * getattr(layer, "residual_multiplier", 1.0)


def _apply(layer: Untyped, name: str | None, x: torch.Tensor) -> torch.Tensor:
    return x if name is None else getattr(layer, name)(x)


class BackbonePatch:
    """Patch of the backbone: passes the boundaries of packed rows to the layers as `segments`."""

    def __init__(self, backbone: Untyped) -> None:
        self._backbone = backbone
        self._stock = vars(backbone).get("forward")
        stock = backbone.forward

        @functools.wraps(type(backbone).forward)
        def forward(
            this: Untyped,
            *args: Untyped,
            cu_seq_lens_q: torch.Tensor | None = None,
            **kwargs: Untyped,
        ) -> Untyped:
            if this is not backbone:
                raise RuntimeError(
                    "this is a copy of a patched model: undo the patches before copying a model"
                )
            if cu_seq_lens_q is None or kwargs.get("attention_mask") is not None:
                return stock(*args, cu_seq_lens_q=cu_seq_lens_q, **kwargs)
            kwargs |= {"segments": _segments(cu_seq_lens_q), "attention_mask": NO_MASK}
            return stock(*args, cu_seq_lens_q=cu_seq_lens_q, **kwargs)

        backbone.forward = types.MethodType(forward, backbone)

    def undo(self) -> None:
        if self._stock is None:
            self._backbone.__dict__.pop("forward", None)
        else:
            self._backbone.forward = self._stock


def _segments(cumulative: torch.Tensor) -> Segments:
    layout = current_layout()
    if layout is None or layout.bounds is None:
        return Segments.from_cumulative(cumulative)
    return Segments(layout.bounds, cumulative.to(torch.int32), layout.prefixes)
