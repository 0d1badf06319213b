"""Sizes of the model, the tuning and the micro-batch, as inputs of the memory prediction.

All sizes are plain numbers, so the memory plan needs neither torch nor a loaded model.
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
"""Fused projections of Phi-3: the keys are the names of single projections, the values the names of
the fused projections that contain them."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a causal language model."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary: int
    """Number of dimensions of a head that RoPE rotates."""
    vocabulary: int
    tied: bool
    before_norms: bool
    after_norms: bool
    qk_norm: bool
    softcap: bool
    """True for soft-capped attention scores. torch's varlen kernels do not support soft caps."""

    @property
    def q(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Number of weights in a layer's linear modules. Biases and norms (below 0.1 % of the
        weights) are ignored."""
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
        """Return (in, out) features of a projection."""
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
    """Read the model's shape from a configuration of transformers.

    The shape is exact for Llama-like models (engine/patches/families.py). For models that are not
    Llama-like, the shape is approximate, and the trial pass (probe.py) corrects the prediction.
    Raises AttributeError if the configuration lacks a size."""
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
    """The trained parameters and the dtypes of training."""

    full: bool
    compute_bytes: int
    """Bytes per element in matrix multiplications: 4 in fp32, 2 in bf16 or under autocast."""
    stream_bytes: int
    """Bytes per element of the residual stream."""
    weights: int
    """Bytes of all weights except the adapter."""
    trained: int
    """Number of trained parameters."""
    adapter: int = 0
    """Bytes of the adapter."""
    ranks: tuple[tuple[str, int], ...] = ()
    """Pairs of an adapted projection's name and its rank."""
    dropout: bool = False
    gradient_bytes: int = 4
    """Gradient bytes per trained parameter."""
    optimizer_bytes: float = 8.0
    """Bytes of optimiser state per trained parameter. AdamW's two fp32 moments take 8 bytes."""
    tables: int = 0
    """Number of fully trained vocabulary matrices: embedding and head. Tied matrices count as one
    matrix."""
    whole_head: bool = False
    """True if the head's matrix is fully trained."""
    packed: bool = False
    """True if the linear weights have 4 bits."""
    eight_bits: bool = False
    """True if the linear weights have 8 bits. bitsandbytes' layers keep their inputs for
    backward."""

    def rank_of(self, *modules: str) -> int:
        """Sum of the adapter ranks of `modules`."""
        return sum(rank for name, rank in self.ranks if name in modules)

    def adapts(self, module: str) -> bool:
        return any(name == module for name, _ in self.ranks)


def lora(shape: ModelShape, recipe: LoraRecipe, targets: list[str], *, bf16: bool) -> Tuning:
    """Return the sizes for fp32 adapters on a frozen base model. `targets`: names of the adapted
    projections."""
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
    """Return the sizes for training all weights in fp32. If `bf16` is True, training uses bf16
    autocast."""
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
    """Size of one forward pass."""

    rows: int
    longest: int
    """Number of tokens in the longest row."""
    tokens: int
    """Number of positions in the forward pass: `rows x longest` with padding, else the sum of the
    row lengths."""
    labelled: int
    """Number of positions with a label; at most `tokens`."""
    padded: bool
    """True for padded rows under a mask; False for rows concatenated into one sequence."""

    def part(self, parts: int) -> MicroBatch:
        """Split the micro-batch by rows into `parts` about equal parts, and return the largest
        part."""
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
    """Patches in use, device, and number of micro-batches per step."""

    ours: frozenset[str]
    """Names of our patches that every layer uses (engine/patches/patch.py)."""
    on_gpu: bool
    passes: int
    """Number of micro-batches in an optimiser step."""

    def host_block(self, size: int) -> int:
        """Bytes that an offloaded tensor of `size` bytes takes on the host.

        On a GPU, torch pins blocks whose size is a power of two (CachingHostAllocator.h)."""
        return 1 << (size - 1).bit_length() if self.on_gpu and size else size
