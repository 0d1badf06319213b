"""What the memory model needs to know of a model, of what is trained in it, and of a micro-batch.

Numbers only, read from a configuration: no torch, so that a plan can be made without a model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tunesmith_schema import LoraRecipe

_AFTER_NORMS = frozenset({"gemma2", "gemma3_text", "olmo2", "olmo3", "hyperclovax"})
_NO_BEFORE_NORMS = frozenset({"olmo2", "olmo3"})
_QK_NORMS = frozenset({"qwen3", "gemma3_text", "olmo2", "olmo3"})
_FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj"} | {
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
"""Phi-3 has one module where others have several."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary: int
    """Dimensions of a head that RoPE turns."""
    vocabulary: int
    tied: bool
    before_norms: bool
    after_norms: bool
    qk_norm: bool
    softcap: bool
    """Scores are bent: torch's varlen kernels cannot do this."""

    @property
    def q(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Of the linear layers; biases and norms are left out (below 0.1 %)."""
        attention = self.hidden * (2 * self.q + 2 * self.kv)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def embedding_parameters(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        tables = 1 if self.tied else 2
        return self.layers * self.layer_parameters + tables * self.embedding_parameters

    def widths(self, module: str) -> tuple[int, int]:
        """(in, out) of a projection, by its name."""
        h, i = self.hidden, self.intermediate
        return {
            "q_proj": (h, self.q),
            "k_proj": (h, self.kv),
            "v_proj": (h, self.kv),
            "qkv_proj": (h, self.q + 2 * self.kv),
            "o_proj": (self.q, h),
            "gate_proj": (h, i),
            "up_proj": (h, i),
            "gate_up_proj": (h, 2 * i),
            "down_proj": (i, h),
        }[module]


Untyped = Any  # Any: a configuration of transformers, which is not typed


def shape_of(config: Untyped) -> ModelShape:
    """Shape of a causal language model like Llama (engine/patches/families.py). Others get
    a rough one, which the probe corrects. Raises AttributeError where there is no size to read."""
    config = config.get_text_config()
    heads = int(config.num_attention_heads)
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    rope = getattr(config, "rope_parameters", None) or {}
    partial = rope.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", 1.0))
    return ModelShape(
        layers=int(config.num_hidden_layers),
        hidden=int(config.hidden_size),
        intermediate=int(config.intermediate_size),
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=head_dim,
        rotary=int(head_dim * (partial or 1.0)),
        vocabulary=int(config.vocab_size),
        tied=bool(config.tie_word_embeddings),
        before_norms=config.model_type not in _NO_BEFORE_NORMS,
        after_norms=config.model_type in _AFTER_NORMS,
        qk_norm=config.model_type in _QK_NORMS,
        softcap=getattr(config, "attn_logit_softcapping", None) is not None,
    )


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What is trained, and in which dtypes. Bytes are of one element or of a whole, as named."""

    full: bool
    compute_bytes: int
    """An element of what the products work on: 4 in fp32, 2 in bf16 (autocast's where it is on)."""
    stream_bytes: int
    """An element of the residual stream."""
    weights: int
    """Bytes of all weights as they are held while training, the adapter's not counted."""
    trained: int
    """Parameters that are trained."""
    adapter: int = 0
    """Bytes of the adapter."""
    ranks: tuple[tuple[str, int], ...] = ()
    """Adapted projections of a layer, and the rank of each."""
    dropout: bool = False
    gradient_bytes: int = 4
    """Of one trained parameter's gradient."""
    optimizer_bytes: float = 8.0
    """What the optimiser keeps for one trained parameter: 8 for AdamW's two moments in fp32."""
    tables: int = 0
    """Of the embedding and the head, how many train as a whole; tied ones are one."""
    whole_head: bool = False
    """Whether the head's matrix is one of them."""
    packed: bool = False
    """The base's linear weights are in 4 bits: ours widen a group of them at a time."""
    eight_bits: bool = False
    """They are in 8 bits: bitsandbytes' layers, which hold on to their inputs."""

    def rank_of(self, *modules: str) -> int:
        return sum(rank for name, rank in self.ranks if name in modules)

    def adapts(self, module: str) -> bool:
        return any(name == module for name, _ in self.ranks)


def lora(shape: ModelShape, recipe: LoraRecipe, targets: list[str], *, bf16: bool) -> Tuning:
    """fp32 adapters on a frozen base. `targets`: names of projections."""
    fused = tuple(dict.fromkeys(targets))
    ranks = tuple((name, recipe.r) for name in fused)
    per_layer = sum(recipe.r * sum(shape.widths(name)) for name in fused)
    trained = shape.layers * per_layer
    size = 2 if bf16 else 4
    return Tuning(
        full=False,
        compute_bytes=size,
        stream_bytes=size,
        weights=shape.parameters * size,
        trained=trained,
        adapter=4 * trained,
        ranks=ranks,
        dropout=recipe.lora_dropout > 0,
    )


def full(shape: ModelShape, *, bf16: bool) -> Tuning:
    """All weights in fp32; with `bf16` the products run in it (autocast)."""
    return Tuning(
        full=True,
        compute_bytes=2 if bf16 else 4,
        stream_bytes=4,
        weights=4 * shape.parameters,
        trained=shape.parameters,
        tables=1 if shape.tied else 2,
        whole_head=True,
    )


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """One forward pass."""

    rows: int
    longest: int
    """Tokens of the longest row."""
    tokens: int
    """All positions that are computed: rows x longest where rows are padded, else their sum."""
    labelled: int
    """Positions with a label; at most `tokens`."""
    padded: bool
    """Rows side by side under a mask, instead of end to end."""

    def part(self, parts: int) -> MicroBatch:
        """The largest of `parts` about equal parts, by rows."""
        if parts == 1:
            return self
        rows = -(-self.rows // parts)
        share = rows / self.rows
        tokens = (
            rows * self.longest if self.padded else max(self.longest, round(self.tokens * share))
        )
        labelled = min(tokens, max(1, round(self.labelled * share)))
        return replace(self, rows=rows, tokens=tokens, labelled=labelled)


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Who computes what."""

    ours: frozenset[str]
    """Mechanisms of ours that are in the model (engine/patches/patch.py)."""
    on_gpu: bool
    passes: int
    """Micro-batches of an optimiser step."""
