"""Table of model families: names of the modules in a decoder layer, by architecture.

In all families, a layer adds the outputs of attention and of an MLP to the residual stream.
Attention and MLP each have a norm before them, after them or both. A `Family` lists only the
differences from Llama. To support a new model family, add a row to the table.

In some families, our kernels compute only a layer's attention, because the layer's MLP has no gate
or has experts. For a norm other than RMSNorm, the model's own module computes the norm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from tunesmith_kernels.rms_norm import NormKind


@dataclass(frozen=True, kw_only=True)
class Family:
    norm: NormKind | None = NormKind.LLAMA
    """Kind of RMSNorm. None if the norms are not RMSNorm; then the model's own modules compute
    them."""
    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    activation: str = "act_fn"
    """Name of the MLP's activation module."""
    rope: Literal["halves", "pairs", "pairs_repeated"] = "halves"
    """`halves`: RoPE rotates elements i and i + D/2 of a head together, where D is the number of
    rotated elements. `pairs`: RoPE rotates elements 2i and 2i + 1 together. `pairs_repeated`: same
    as `pairs`, but the model's cos and sin tables have equal values at 2i and 2i + 1 instead of at
    i and i + D/2."""
    parallel: bool = False
    """True if attention and MLP read the same normalised input."""
    qk_norms: tuple[str, str] = ("q_norm", "k_norm")
    norm_after_rope: bool = False
    """True if RMSNorm of queries and keys follows RoPE."""
    scaled_queries: bool = False
    """True if queries are scaled by their position in long rows (Ministral 3)."""

    @property
    def decodes(self) -> bool:
        """True if the rollout engine supports this family."""
        plain = self.rope == "halves" and not (self.parallel or self.norm_after_rope)
        return plain and not self.scaled_queries and self.norm is not None and bool(self.gate_up)


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

_NO_GATE = Family(gate_up=())
_OTHER_NORM = Family(norm=None, gate_up=())
_GLM = Family(gate_up=("gate_up_proj",), activation="activation_fn", rope="pairs")

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
    "SeedOssDecoderLayer": _LLAMA,
    "Ministral3DecoderLayer": Family(scaled_queries=True),
    "Exaone4DecoderLayer": Family(
        before_attention=None,
        after_attention="post_attention_layernorm",
        before_mlp=None,
        after_mlp="post_feedforward_layernorm",
    ),
    "Ernie4_5DecoderLayer": Family(rope="pairs"),
    "HeliumDecoderLayer": Family(norm=NormKind.OLMO, rope="pairs"),
    "GlmDecoderLayer": _GLM,
    "Glm4DecoderLayer": replace(
        _GLM, after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"
    ),
    "CohereDecoderLayer": Family(norm=None, parallel=True, rope="pairs_repeated"),
    "Cohere2DecoderLayer": Family(norm=None, parallel=True, rope="pairs_repeated"),
    "OlmoDecoderLayer": Family(norm=None),
    "HunYuanDenseV1DecoderLayer": Family(
        qk_norms=("query_layernorm", "key_layernorm"), norm_after_rope=True
    ),
    # The MLP of these families has no gate or has experts, so our kernels compute only the
    # attention.
    "ArceeDecoderLayer": _NO_GATE,
    "MixtralDecoderLayer": _NO_GATE,
    "Qwen3MoeDecoderLayer": _NO_GATE,
    "Starcoder2DecoderLayer": _OTHER_NORM,
    "Jais2DecoderLayer": _OTHER_NORM,
    "NemotronDecoderLayer": _OTHER_NORM,
}
"""Families, keyed by the decoder layer's class name in transformers 5.23."""


def is_known(layer: object) -> bool:
    """Return True if the layer's class is from transformers and in the table.

    A class with the same name from another package may compute something else."""
    kind = type(layer)
    return kind.__name__ in FAMILIES and kind.__module__.startswith("transformers.models.")


def is_known_model(causal: Any) -> bool:  # Any: transformers is not typed
    """Return True if all decoder layers of a causal language model are in the table."""
    layers = getattr(causal.base_model, "layers", None)
    return isinstance(layers, torch.nn.ModuleList) and all(map(is_known, layers))
