"""Row lengths in the self-check. The longest checked row is longer than the model's attention
window and than two tiles of our attention kernel.
"""

from __future__ import annotations

from typing import Any

import torch

from tunesmith_kernels.attention import tile_size

Untyped = Any  # Any: transformers is not typed

TOKENS = {"cpu": 1024, "cuda": 8192}
"""Maximum tokens of the longest row, for each type of device."""
OWN_TOKENS = {"cpu": 256, "cuda": 4096}
"""Limit in tokens for the run's longest row, for each type of device. If the run's longest row is
longer, a row of OWN_TOKENS tokens is checked instead."""


def longest_row(
    config: Untyped, longest: int, dtype: torch.dtype, device: torch.device, *, more: int = 0
) -> int:
    """Return the number of tokens of the longest row to check.

    The number is the largest of three: the attention window + 2; two tiles of our attention
    kernel + 2; the run's longest row, but at most OWN_TOKENS. The last token predicts nothing, so
    window + 2 tokens give window + 1 predictions.

    `longest`: tokens of the longest row or prompt of the run. `more`: number of completion tokens
    that follow the row. Rows longer than the model's context, or long enough to change its RoPE
    frequencies, are not checked."""
    kind = "cuda" if device.type == "cuda" else "cpu"
    text = config.get_text_config()
    window = _window(text)
    tiles = 2 * tile_size(dtype, device) + 2
    wanted = max(tiles, min(longest, OWN_TOKENS[kind]), 0 if window is None else window + 2)
    limits = [TOKENS[kind], getattr(text, "max_position_embeddings", None), stable_length(config)]
    return min([wanted, *(max(1, int(limit) - more) for limit in limits if limit)])


def stable_length(config: Untyped) -> int | None:
    """Return the row length above which RoPE's frequencies depend on the longest row of a batch;
    None if there is no such length."""
    text = config.get_text_config()
    scaling = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    groups = [scaling, *(value for value in scaling.values() if isinstance(value, dict))]
    for group in groups:
        if group.get("rope_type") in ("dynamic", "longrope"):
            limit = group.get("original_max_position_embeddings")
            return int(limit or text.max_position_embeddings)
    return None


def _window(text: Untyped) -> int | None:
    """Return the window of the model's sliding attention; None without a window."""
    if getattr(text, "use_sliding_window", True) is False:
        return None
    kinds = getattr(text, "layer_types", None)
    if kinds and not any("sliding" in str(kind) for kind in kinds):
        return None
    window = getattr(text, "sliding_window", None)
    return int(window) if isinstance(window, int) else None
