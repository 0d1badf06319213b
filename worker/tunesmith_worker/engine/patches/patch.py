"""Put our kernels into a model, and take them out again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import peft
import torch

from .attention_interface import register_segment_attention
from .decoder import BackbonePatch, DecoderLayerPatch
from .families import is_known
from .head import HeadPatch
from .projections import Unsupported
from .report import PatchReport
from .token_rows import TokenRowsPatch, has_token_rows

Untyped = Any  # Any: transformers and peft are not typed

MECHANISMS = frozenset({"attention_block", "mlp_block", "attention", "loss"})
"""The half blocks of a decoder layer; attention alone, in layers whose half block stays stock; and
the loss head."""


class Patched:
    """A model with our kernels in it."""

    def __init__(
        self,
        model: Untyped,
        wanted: frozenset[str],
        report: PatchReport,
        undo: list[Untyped],
        layers: list[DecoderLayerPatch],
    ) -> None:
        self.report, self.layers = report, layers
        """`layers`: those with a half block of ours."""
        self._model, self._wanted, self._undo = model, wanted, undo

    def undo(self) -> None:
        """The model as it was, bit for bit; safe to call twice."""
        while self._undo:
            self._undo.pop()()

    def redo(self) -> None:
        """After `undo`: our kernels in the model as it is now. The report stays the first one."""
        assert not self._undo, "the model is patched"
        again = patch(self._model, self._wanted)
        self._undo, self.layers[:] = again._undo, again.layers


def patch(model: Untyped, mechanisms: Iterable[str] = MECHANISMS) -> Patched:
    """`model`: a causal language model of transformers, with PEFT's LoRA or without, that TRL's
    trainer has been given. What is not recognised stays stock and stands in the report."""
    wanted = frozenset(mechanisms)
    if unknown := wanted - MECHANISMS:
        raise ValueError(f"unknown patches {sorted(unknown)}: known are {sorted(MECHANISMS)}")
    report = PatchReport(wanted | {"token_rows"})  # come where there are some, named by nobody
    undo: list[Untyped] = []
    layers: list[DecoderLayerPatch] = []
    causal = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    backbone = causal.base_model
    try:
        if wanted & {"attention_block", "mlp_block", "attention"}:
            _patch_backbone(backbone, wanted, report, undo, layers)
        if wanted and has_token_rows(causal.get_input_embeddings()):
            _patch_token_rows(causal, report, undo)
        if "loss" in wanted:
            undo.append(HeadPatch(causal).undo)
            report.add_patched("loss")
    except BaseException:
        Patched(model, wanted, report, undo, layers).undo()
        raise
    return Patched(model, wanted, report, undo, layers)


def _patch_token_rows(causal: Untyped, report: PatchReport, undo: list[Untyped]) -> None:
    try:
        undo.append(TokenRowsPatch(causal.get_input_embeddings()).undo)
    except Unsupported as why:
        report.add_unchanged("token_rows", str(why))
    else:
        report.add_patched("token_rows")


def _patch_backbone(
    backbone: Untyped,
    wanted: frozenset[str],
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
            patched = DecoderLayerPatch(layer, wanted, report)
        except Unsupported as why:
            for name in wanted & {"attention_block", "mlp_block"}:
                report.add_unchanged(name, str(why))
        else:
            undo.append(patched.undo)
            if patched.has_half:
                layers.append(patched)
    for _ in range(len(backbone.layers) - report.counts["attention_block"]):
        report.add_patched("attention")


def stock_attention_reason(model: Untyped) -> str | None:
    """Why batches of this causal language model need padding and masks; None: they do not."""
    return _stock_reason(model.base_model)


def _stock_reason(backbone: Untyped) -> str | None:
    layers = getattr(backbone, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        return f"{type(backbone).__name__} has no list of layers"
    layer: Untyped
    for layer in layers:
        if not is_known(layer):
            return f"{type(layer).__name__} is not among the known families"
        if not layer.self_attn.is_causal:
            return "attention that is not causal"
    if getattr(backbone.config, "attention_dropout", 0.0):
        return "attention dropout"
    if not backbone._supports_attention_backend:
        return f"{type(backbone).__name__} does not ask transformers' attention registry"
    return None
