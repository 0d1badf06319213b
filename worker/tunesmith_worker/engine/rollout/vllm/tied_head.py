"""Repair vLLM's output head after vLLM has loaded new weights."""

from __future__ import annotations

from typing import Any

Untyped = Any  # Any: vLLM is not typed here


def refresh_tied_head(model: Untyped) -> None:
    """On a CPU, convert the weight of the output head to the layout of vLLM's kernel again. When
    vLLM loads new weights, it does not convert a head that shares the embedding's weight."""
    head = getattr(model, "lm_head", None)
    if head is not None and hasattr(head, "cpu_linear"):
        head.quant_method.process_weights_after_loading(head)
