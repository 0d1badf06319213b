"""Patch a model with our kernels, and undo the patches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import peft
import torch

from tunesmith_worker.engine.model.softcap import ignores_softcap

from .attention_interface import register_segment_attention
from .decoder import BackbonePatch, DecoderLayerPatch
from .families import is_known
from .head import HeadPatch
from .projections import Unsupported
from .report import PatchReport
from .token_rows import TokenRowsPatch, has_token_rows

Untyped = Any  # Any: transformers and peft are not typed

MECHANISMS = frozenset({"attention_block", "mlp_block", "attention", "loss"})
"""Names of the patches: the half blocks (attention or MLP, each with its norm and residual), the
attention operation alone, and the loss head."""


class Patched:
    """A patched model with its patch report and a method to undo the patches."""

    def __init__(
        self,
        model: Untyped,
        mechanisms: frozenset[str],
        report: PatchReport,
        undo: list[Untyped],
        layers: list[DecoderLayerPatch],
    ) -> None:
        self.report, self.layers = report, layers
        """Patch report, and the layers that have at least one of our half blocks (attention or
        MLP)."""
        self._model, self._mechanisms, self._undo = model, mechanisms, undo

    def undo(self) -> None:
        """Restore the original model, bit for bit. Repeated calls are safe."""
        while self._undo:
            self._undo.pop()()

    def redo(self) -> None:
        """Patch the model again after `undo`. The report of the first patch stays valid."""
        assert not self._undo, "the model is already patched"
        patched = patch(self._model, self._mechanisms)
        self._undo, self.layers[:] = patched._undo, patched.layers


def patch(model: Untyped, mechanisms: Iterable[str] = MECHANISMS) -> Patched:
    """Patch a transformers causal language model, with or without PEFT's LoRA.

    The model needs TRL's fused head (`add_fused_lm_head`), which TRL's trainers add. Unsupported
    modules are left unchanged and listed in the report."""
    chosen = frozenset(mechanisms)
    if unknown := chosen - MECHANISMS:
        raise ValueError(f"unknown patches {sorted(unknown)}: choose from {sorted(MECHANISMS)}")
    report = PatchReport(chosen | {"token_rows"})  # token rows are always patched
    undo: list[Untyped] = []
    layers: list[DecoderLayerPatch] = []
    causal = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    backbone = causal.base_model
    try:
        if chosen & {"attention_block", "mlp_block", "attention"}:
            _patch_backbone(backbone, chosen, report, undo, layers)
        if chosen and has_token_rows(causal.get_input_embeddings()):
            _patch_token_rows(causal, report, undo)
        if "loss" in chosen:
            undo.append(HeadPatch(causal).undo)
            report.add_patched("loss")
    except BaseException:
        Patched(model, chosen, report, undo, layers).undo()
        raise
    _free_unfused_weights(causal)
    return Patched(model, chosen, report, undo, layers)


def _free_unfused_weights(causal: Untyped) -> None:
    """Free the memory that fused weights occupied before they were fused.

    In an 8B model, the fused weights have 9 GiB. torch's allocator would keep this memory for
    tensors of the same size, but training has few tensors of that size."""
    if causal.device.type == "cuda":
        torch.cuda.empty_cache()


def _patch_token_rows(causal: Untyped, report: PatchReport, undo: list[Untyped]) -> None:
    try:
        undo.append(TokenRowsPatch(causal.get_input_embeddings()).undo)
    except Unsupported as why:
        report.add_unchanged("token_rows", str(why))
    else:
        report.add_patched("token_rows")


def _patch_backbone(
    backbone: Untyped,
    mechanisms: frozenset[str],
    report: PatchReport,
    undo: list[Untyped],
    layers: list[DecoderLayerPatch],
) -> None:
    config = backbone.config
    reason = _stock_reason(backbone)
    if reason:
        report.add_unchanged("attention", reason)
        return
    stock = config._attn_implementation

    def restore() -> None:
        config._attn_implementation_internal = stock

    config._attn_implementation_internal = register_segment_attention(stock)
    undo.append(restore)
    undo.append(BackbonePatch(backbone).undo)
    for layer in backbone.layers:
        try:
            patched = DecoderLayerPatch(layer, mechanisms, report)
        except Unsupported as why:
            for name in mechanisms & {"attention_block", "mlp_block"}:
                report.add_unchanged(name, str(why))
        else:
            undo.append(patched.undo)
            if patched.has_half:
                layers.append(patched)
    for _ in range(len(backbone.layers) - report.counts["attention_block"]):
        report.add_patched("attention")


def stock_attention_reason(model: Untyped) -> str | None:
    """Return why this causal language model needs padded batches; None if it does not."""
    return _stock_reason(model.base_model)


def _stock_reason(backbone: Untyped) -> str | None:
    layers = getattr(backbone, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        return f"{type(backbone).__name__} has no list of decoder layers"
    layer: Untyped
    for layer in layers:
        if not is_known(layer):
            return f"unsupported model family ({type(layer).__name__})"
        if not layer.self_attn.is_causal:
            return "non-causal attention"
    if getattr(backbone.config, "attention_dropout", 0.0):
        return "attention dropout"
    if ignores_softcap(backbone):
        return "SDPA ignores the soft cap of the attention scores"
    if not backbone._supports_attention_backend:
        return f"{type(backbone).__name__} does not use transformers' attention registry"
    return None
