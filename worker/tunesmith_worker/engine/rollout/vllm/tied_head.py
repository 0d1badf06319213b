"""Repair of vLLM's head after its weights were loaded again."""

from __future__ import annotations

from typing import Any

Untyped = Any  # Any: vLLM is not typed here


def refresh_tied_head(model: Untyped) -> None:
    """Pack the head of a CPU again: vLLM packs a head that shares the embedding's weight only when
    it starts."""
    head = getattr(model, "lm_head", None)
    if head is not None and hasattr(head, "cpu_linear"):
        head.quant_method.process_weights_after_loading(head)
