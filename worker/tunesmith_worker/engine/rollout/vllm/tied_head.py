"""Repair vLLM's head after its weights were loaded again."""

from __future__ import annotations

from typing import Any

Untyped = Any  # Any: vLLM is not typed here


def refresh_tied_head(model: Untyped) -> None:
    """On a CPU, pack the head's weight again. When weights are loaded again, vLLM does not pack a
    head that shares the embedding's weight."""
    head = getattr(model, "lm_head", None)
    if head is not None and hasattr(head, "cpu_linear"):
        head.quant_method.process_weights_after_loading(head)
