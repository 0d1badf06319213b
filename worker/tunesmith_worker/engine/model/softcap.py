"""Keep the soft cap of attention scores in every supported transformers version.

Torch's SDPA has no soft cap. transformers before 5.21 still loads Gemma 2 and VaultGemma with SDPA,
which ignores their cap without a warning.
"""

from __future__ import annotations

from typing import Any

Untyped = Any  # Any: transformers is not typed

CAPPED_ATTENTION = frozenset({"Gemma2Attention", "VaultGemmaAttention"})
"""Attention classes whose scores have a soft cap. Some other classes read a soft cap from the
configuration, but do not apply it."""


def ignores_softcap(model: Untyped) -> bool:
    """Return True if the model's attention ignores the soft cap of its scores."""
    return model.config.get_text_config()._attn_implementation == "sdpa" and any(
        type(module).__name__ in CAPPED_ATTENTION and module.attn_logit_softcapping is not None
        for module in model.modules()
    )


def keep_softcap(model: Untyped) -> None:
    """If the model's attention ignores the soft cap, use eager attention, which applies it."""
    if ignores_softcap(model):
        model.set_attn_implementation("eager")
