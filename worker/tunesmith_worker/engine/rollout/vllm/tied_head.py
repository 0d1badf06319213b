"""Repair vLLM's head after its weights were loaded again."""

from __future__ import annotations

from typing import Any

Untyped = Any  # Any: vLLM is not typed here


def refresh_tied_head(model: Untyped) -> None:
    """Pack the head again on a CPU. If the head shares the embedding's weight, vLLM packs it only
    at its start."""
    head = getattr(model, "lm_head", None)
    if head is not None and hasattr(head, "cpu_linear"):
        head.quant_method.process_weights_after_loading(head)
