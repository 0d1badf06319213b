"""Small configurations for every causal language model in transformers.

The defaults of a configuration class describe a released model. `small_config` recognises the
fields for sizes by their names, and replaces their values by small values. `EXCEPTIONS` lists field
values that cannot be derived from field names.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

Untyped = Any  # Any: transformers is not typed

_LAYERS = 2
_SIZES: tuple[tuple[str, int], ...] = (
    (r"(num|n)_(hidden_)?layers?|(en|de)coder_layers|depth|num_blocks", _LAYERS),
    (r"(num|n)_(decoder|encoder|local|global|text)_.*layers", _LAYERS),
    (r"(num_(key_value|kv)_heads|num_query_groups|.*_num_key_value_heads)", 2),
    (r"(num_attention_heads|n_heads?|num_heads|(en|de)coder_attention_heads)", 4),
    (r".*_num_attention_heads|(num|n)_.*_heads", 4),
    (r"(hidden_size|n_embd|d_model|dim|embed_dim|embedding_size|model_dim)", 32),
    (r"(.*_)?(intermediate|ffn|ff|mlp|inner).*(size|dim|hidden|inner)|d_ff|n_inner|ffn_dim", 48),
    (r"rotary_dim", 8),
    (r"(head_dim|d_kv|attention_head_dim|.*_head_dim|head_size)", 8),
    (r"(num_experts|n_routed_experts|num_local_experts|moe_num_experts|n_experts)", 4),
    (r"(vocab_size|.*_vocab_size|vocab_size_.*)", 384),
    (r"(max_position_embeddings|n_positions|max_seq_len|max_sequence_length|n_ctx)", 256),
    (r"(.*_)?lora_rank|.*_rank", 8),
    (r"num_experts_per_tok(en)?|moe_(top_?)?k|num_selected_experts|top_k_experts", 2),
    (r"n_group|topk_group", 1),
    (r"first_k_dense_replace|num_dense_layers|num_kv_shared_layers", 0),
    (r"hidden_size_per_layer_input|vocab_size_per_layer_input|.*_num_embeddings", 8),
    (r"(sliding_window|attention_window|window_size|attention_chunk_size)", 16),
    (r"(ssm_state_size|state_size|mamba_d_state|mamba_n_groups)", 4),
)
"""Pairs of a regular expression and a number. A small model's field whose name matches the
expression has at most this value."""

_OFF = r".*(dropout|_pdrop|drop_rate|pdrop|layerdrop|jitter.*).*"
"""Fields that make training random; all are 0, so that losses are comparable."""
_TOKENS = r".*_token_id|.*_token_index"


def architectures() -> dict[str, str]:
    """Return the model class of each model type with a causal language model."""
    return dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def small_config(model_type: str, vocabulary: int) -> Untyped:
    """Return a small configuration of a model type. Errors of the configuration's class are not
    caught."""
    kind = CONFIG_MAPPING[model_type]
    return shrunk(kind(), vocabulary)


def shrunk(config: Untyped, vocabulary: int) -> Untyped:
    sizes: dict[str, Untyped] = {}
    for field in dataclasses.fields(config):
        value = vars(config).get(field.name)
        if not field.init:
            continue
        small = shrunk_value(field.name, value, vocabulary)
        if small is not value:
            sizes[field.name] = small
    if "kv_lora_rank" in vars(config):  # latent attention has no grouped queries
        sizes |= {"num_key_value_heads": 4}
    sizes |= EXCEPTIONS.get(config.model_type, {})
    return type(config)(**sizes)


def shrunk_value(name: str, value: Untyped, vocabulary: int) -> Untyped:
    if isinstance(value, transformers.PreTrainedConfig):
        return shrunk(value, vocabulary)
    if name == "is_decoder":
        return True
    if isinstance(value, bool) or value is None:
        return value
    if re.fullmatch(_OFF, name) and isinstance(value, int | float):
        return type(value)(0)
    if re.fullmatch(_TOKENS, name) and isinstance(value, int):
        return value if value < vocabulary else value % 4
    if re.fullmatch(r"layer_types|.*block_types?|layers_block_type|mlp_layer_types", name):
        return several_kinds(value)
    if isinstance(value, int):
        for pattern, most in _SIZES:
            if re.fullmatch(pattern, name):
                return min(value, vocabulary if most == 384 else most)
    return value


def several_kinds(kinds: Untyped) -> Untyped:
    """List each kind of layer once; if there is only one kind, list this kind twice."""
    distinct = list(dict.fromkeys(kinds))
    return distinct if len(distinct) > 1 else distinct * _LAYERS


_MAMBA_2: dict[str, Untyped] = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8}
_TWO_ROPES: dict[str, Untyped] = {
    name: {"rope_type": "default", "rope_theta": 1e4}
    for name in ("full_attention", "sliding_attention")
}
_GEMMA_3N: dict[str, Untyped] = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["full_attention", "sliding_attention"] * 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 384,
    "intermediate_size": 48,
    "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
    "laurel_rank": 4,
}

EXCEPTIONS: dict[str, dict[str, Untyped]] = {
    "bamba": _MAMBA_2 | {"num_hidden_layers": 2, "attn_layer_indices": [1]},
    "granitemoehybrid": _MAMBA_2 | {"layer_types": ["mamba", "attention"]},
    "cohere_compass_text": {"rope_parameters": _TWO_ROPES},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "gemma3n_text": _GEMMA_3N,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lfm3": {
        "num_hidden_layers": 3,
        "layer_types": ["conv", "sliding_attention", "full_attention"],
    },
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 2},
    "ministral": {"head_dim": 8},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [16, 16]},
    "gemma4_assistant": {"hidden_size_per_layer_input": 0},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0}},
    "dots3_note_text": {"num_key_value_heads": 4, "per_layer_config": {}},
    "longcat_flash": {
        "head_dim": 8,
        "qk_head_dim": 16,
        "ffn_hidden_size": 48,
        "expert_ffn_hidden_size": 16,
        "zero_expert_num": 2,
    },
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
}
"""Field values by model type. The code cannot derive these values from the names and defaults of
the fields."""
