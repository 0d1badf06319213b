"""Pins of the families that share only some mechanisms with Llama, for test_trl_compat.py."""

from __future__ import annotations


def _of(folder: str, hashes: dict[str, str]) -> dict[str, str]:
    """Return the hashes by the full names in a folder of transformers.models."""
    return {f"transformers.models.{folder}.modeling_{folder}:{n}": h for n, h in hashes.items()}


LAYERS: dict[str, str] = {
    **_of(
        "seed_oss",
        {
            "SeedOssDecoderLayer.forward": "1a8125909341",
            "SeedOssAttention.__init__": "a24cbbac76ec",
            "SeedOssAttention.forward": "7baac27d1a7a",
            "SeedOssMLP.forward": "24ed32eb8cb3",
            "SeedOssRMSNorm.forward": "9635bcd843f3",
            "apply_rotary_pos_emb": "f0e978aab1df",
        },
    ),
    **_of(
        "ministral3",
        {
            "Ministral3DecoderLayer.forward": "1a8125909341",
            "Ministral3Attention.__init__": "3d33dd3d1835",
            "Ministral3Attention.forward": "f6e55f7d3f76 84687ba1afc6",
            "Ministral3MLP.forward": "7d2027d4464e",
            "Ministral3RMSNorm.forward": "9635bcd843f3",
            "apply_rotary_pos_emb": "f0e978aab1df",
            "get_llama_4_attn_scale": "f18582901280",
        },
    ),
    **_of(
        "exaone4",
        {
            "Exaone4DecoderLayer.forward": "47f108ddd245",
            "Exaone4Attention.__init__": "64e36873a40e",
            "Exaone4Attention.forward": "9cfec08f309d",
            "Exaone4MLP.forward": "7d2027d4464e",
            "Exaone4RMSNorm.forward": "9635bcd843f3",
            "apply_rotary_pos_emb": "f0e978aab1df",
        },
    ),
    **_of(
        "ernie4_5",
        {
            "Ernie4_5DecoderLayer.forward": "1a8125909341",
            "Ernie4_5Attention.__init__": "7f7f71bdc7b1",
            "Ernie4_5Attention.forward": "865d17a1b6ed",
            "Ernie4_5MLP.forward": "7d2027d4464e",
            "Ernie4_5RMSNorm.forward": "9635bcd843f3",
            "apply_rotary_pos_emb": "b327730a0823",
            "rotate_half": "a28ab7df6285",
        },
    ),
    **_of(
        "helium",
        {
            "HeliumDecoderLayer.forward": "1a8125909341",
            "HeliumAttention.__init__": "ece3a00998d7",
            "HeliumAttention.forward": "865d17a1b6ed",
            "HeliumMLP.forward": "7d2027d4464e",
            "HeliumRMSNorm.forward": "b6d7ab076811",
            "apply_rotary_pos_emb": "783b0459b7cd",
            "rotate_half": "a28ab7df6285",
        },
    ),
    **_of(
        "glm",
        {
            "GlmDecoderLayer.forward": "1a8125909341",
            "GlmAttention.__init__": "88765af37814",
            "GlmAttention.forward": "865d17a1b6ed",
            "GlmMLP.forward": "e8d404cbecb9",
            "GlmRMSNorm.forward": "9635bcd843f3",
            "apply_rotary_pos_emb": "2cba81d929fd",
            "rotate_half": "a28ab7df6285",
        },
    ),
    **_of(
        "glm4",
        {
            "Glm4DecoderLayer.forward": "9469804e4de4",
            "Glm4Attention.__init__": "88765af37814",
            "Glm4Attention.forward": "865d17a1b6ed",
            "Glm4MLP.forward": "e8d404cbecb9",
            "Glm4RMSNorm.forward": "9635bcd843f3",
            "apply_rotary_pos_emb": "2cba81d929fd",
            "rotate_half": "a28ab7df6285",
        },
    ),
    **_of(
        "cohere",
        {
            "CohereDecoderLayer.forward": "e55c5b6b3eba",
            "CohereAttention.__init__": "275f637fe91a",
            "CohereAttention.forward": "71dd2bd8f9af",
            "CohereMLP.forward": "7d2027d4464e",
            "apply_rotary_pos_emb": "e8f88cb26b9a",
            "rotate_half": "aaf0544cc6c9",
        },
    ),
    **_of(
        "cohere2",
        {
            "Cohere2DecoderLayer.forward": "1d6c4f354467",
            "Cohere2Attention.__init__": "0175e98a1a58",
            "Cohere2Attention.forward": "c93390d80bcb",
            "Cohere2MLP.forward": "7d2027d4464e",
            "apply_rotary_pos_emb": "e8f88cb26b9a",
            "rotate_half": "aaf0544cc6c9",
        },
    ),
    **_of(
        "olmo",
        {
            "OlmoDecoderLayer.forward": "1a8125909341",
            "OlmoAttention.__init__": "db3a55058138",
            "OlmoAttention.forward": "d49f5f8c5afd",
            "OlmoMLP.forward": "7d2027d4464e",
            "apply_rotary_pos_emb": "8012832f83a7",
        },
    ),
    **_of(
        "hunyuan_v1_dense",
        {
            "HunYuanDenseV1DecoderLayer.forward": "1a8125909341",
            "HunYuanDenseV1Attention.__init__": "a9916e701889",
            "HunYuanDenseV1Attention.forward": "a4263f0171ff",
            "HunYuanDenseV1MLP.forward": "7d2027d4464e",
            "HunYuanDenseV1RMSNorm.forward": "9635bcd843f3",
            "apply_rotary_pos_emb": "f0e978aab1df",
        },
    ),
    **_of(
        "arcee",
        {
            "ArceeDecoderLayer.forward": "1a8125909341",
            "ArceeAttention.__init__": "db3a55058138",
            "ArceeAttention.forward": "865d17a1b6ed",
            "ArceeRMSNorm.forward": "9635bcd843f3",
            "apply_rotary_pos_emb": "f0e978aab1df",
        },
    ),
    **_of(
        "mixtral",
        {
            "MixtralDecoderLayer.forward": "d4699009e63a",
            "MixtralAttention.__init__": "3d33dd3d1835",
            "MixtralAttention.forward": "38eb7a675fc0",
            "MixtralRMSNorm.forward": "9635bcd843f3",
            "apply_rotary_pos_emb": "f0e978aab1df",
        },
    ),
    **_of(
        "qwen3_moe",
        {
            "Qwen3MoeDecoderLayer.forward": "1a8125909341",
            "Qwen3MoeAttention.__init__": "8ab1773398bc",
            "Qwen3MoeAttention.forward": "e0b15d778eec",
            "Qwen3MoeRMSNorm.forward": "9635bcd843f3",
            "apply_rotary_pos_emb": "f0e978aab1df",
        },
    ),
    **_of(
        "starcoder2",
        {
            "Starcoder2DecoderLayer.forward": "1a8125909341",
            "Starcoder2Attention.__init__": "bfe09ace9008",
            "Starcoder2Attention.forward": "4c64ffbaaf66",
            "apply_rotary_pos_emb": "f0e978aab1df",
        },
    ),
    **_of(
        "jais2",
        {
            "Jais2DecoderLayer.forward": "1a8125909341",
            "Jais2Attention.__init__": "db3a55058138",
            "Jais2Attention.forward": "865d17a1b6ed",
            "apply_rotary_pos_emb": "f0e978aab1df",
        },
    ),
    **_of(
        "nemotron",
        {
            "NemotronDecoderLayer.forward": "0b41299b2e26",
            "NemotronAttention.__init__": "d698083d5ab0",
            "NemotronAttention.forward": "0343c432efa4",
            "apply_rotary_pos_emb": "2ec47c993e6c",
        },
    ),
}
"""What engine/patches/half_blocks.py reproduces -> the hash of its source."""

BACKBONES: dict[str, str] = {
    **_of(
        "seed_oss",
        {
            "SeedOssModel.forward": "3ee4b3154dd9",
        },
    ),
    **_of(
        "ministral3",
        {
            "Ministral3Model.forward": "3e106c8cfc95",
        },
    ),
    **_of(
        "exaone4",
        {
            "Exaone4Model.forward": "a60a971ad1e5",
        },
    ),
    **_of(
        "ernie4_5",
        {
            "Ernie4_5Model.forward": "3ee4b3154dd9",
        },
    ),
    **_of(
        "helium",
        {
            "HeliumModel.forward": "3ee4b3154dd9",
        },
    ),
    **_of(
        "glm",
        {
            "GlmModel.forward": "3ee4b3154dd9",
        },
    ),
    **_of(
        "glm4",
        {
            "Glm4Model.forward": "3ee4b3154dd9",
        },
    ),
    **_of(
        "cohere",
        {
            "CohereModel.forward": "3ee4b3154dd9",
        },
    ),
    **_of(
        "cohere2",
        {
            "Cohere2Model.forward": "31a2a6f7a2ce",
        },
    ),
    **_of(
        "olmo",
        {
            "OlmoModel.forward": "3ee4b3154dd9",
        },
    ),
    **_of(
        "hunyuan_v1_dense",
        {
            "HunYuanDenseV1Model.forward": "3ee4b3154dd9",
        },
    ),
    **_of(
        "arcee",
        {
            "ArceeModel.forward": "3ee4b3154dd9",
        },
    ),
    **_of(
        "mixtral",
        {
            "MixtralModel.forward": "851e9999148b",
        },
    ),
    **_of(
        "qwen3_moe",
        {
            "Qwen3MoeModel.forward": "851e9999148b",
        },
    ),
    **_of(
        "starcoder2",
        {
            "Starcoder2Model.forward": "0d425b3b0cf9",
        },
    ),
    **_of(
        "jais2",
        {
            "Jais2Model.forward": "3ee4b3154dd9",
        },
    ),
    **_of(
        "nemotron",
        {
            "NemotronModel.forward": "7bfabb618a98",
        },
    ),
}
"""What engine/patches/decoder.py calls -> the hash of its source."""
