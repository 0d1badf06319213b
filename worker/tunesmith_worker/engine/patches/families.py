"""Table of model families: names of the modules in a decoder layer, by architecture.

In all families, a layer adds attention and a gated MLP to the residual stream, each with an RMSNorm
before it, after it or both. Each row of the table of model families lists only the differences from
Llama. To support a new model family, add a row to the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith_kernels.rms_norm import NormKind


@dataclass(frozen=True, kw_only=True)
class Family:
    norm: NormKind = NormKind.LLAMA
    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    activation: str = "act_fn"
    """Name of the MLP's activation module."""


_LLAMA = Family()
_GEMMA = Family(
    norm=NormKind.GEMMA,
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)
_OLMO = Family(
    norm=NormKind.OLMO,
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_mlp=None,
    after_mlp="post_feedforward_layernorm",
)

FAMILIES: dict[str, Family] = {
    "LlamaDecoderLayer": _LLAMA,
    "MistralDecoderLayer": _LLAMA,
    "Qwen2DecoderLayer": _LLAMA,
    "Qwen3DecoderLayer": _LLAMA,
    "SmolLM3DecoderLayer": _LLAMA,
    "GraniteDecoderLayer": _LLAMA,
    "MinistralDecoderLayer": _LLAMA,
    "CwmDecoderLayer": _LLAMA,
    "GemmaDecoderLayer": Family(norm=NormKind.GEMMA),
    "VaultGemmaDecoderLayer": Family(norm=NormKind.GEMMA, before_mlp="pre_feedforward_layernorm"),
    "Gemma2DecoderLayer": _GEMMA,
    "Gemma3DecoderLayer": _GEMMA,
    "Olmo2DecoderLayer": _OLMO,
    "Olmo3DecoderLayer": _OLMO,
    "HyperCLOVAXDecoderLayer": Family(after_attention="post_norm1", after_mlp="post_norm2"),
    "Phi3DecoderLayer": Family(
        qkv=("qkv_proj",), gate_up=("gate_up_proj",), activation="activation_fn"
    ),
}
"""Families, keyed by the decoder layer's class name in transformers 5.23."""


def is_known(layer: object) -> bool:
    """Return True if the layer's class is from transformers and in the table.

    A class with the same name from another package may compute something else."""
    kind = type(layer)
    return kind.__name__ in FAMILIES and kind.__module__.startswith("transformers.models.")
