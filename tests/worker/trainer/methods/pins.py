"""Pins of the families that share only some mechanisms with Llama, for test_trl_compat.py."""

from __future__ import annotations


def _of(folder: str, hashes: dict[str, str]) -> dict[str, str]:
    """Return the hashes by the full names in a folder of transformers.models."""
    return {f"transformers.models.{folder}.modeling_{folder}:{n}": h for n, h in hashes.items()}


LAYERS: dict[str, str] = {
    **_of(
        "seed_oss",
        {
            "SeedOssDecoderLayer.forward": "75d1d62e173e",
            "SeedOssAttention.__init__": "f03dc94e08a2",
            "SeedOssAttention.forward": "e5687077091e",
            "SeedOssMLP.forward": "f8f45242513f",
            "SeedOssRMSNorm.forward": "790fa612e4fa",
            "apply_rotary_pos_emb": "ea234325c15d",
        },
    ),
    **_of(
        "ministral3",
        {
            "Ministral3DecoderLayer.forward": "75d1d62e173e",
            "Ministral3Attention.__init__": "46a7e93bbf04",
            "Ministral3Attention.forward": "eb10ccd1d4b9",
            "Ministral3MLP.forward": "03df2d7685cf",
            "Ministral3RMSNorm.forward": "790fa612e4fa",
            "apply_rotary_pos_emb": "ea234325c15d",
            "get_llama_4_attn_scale": "46e7de7a1050",
        },
    ),
    **_of(
        "exaone4",
        {
            "Exaone4DecoderLayer.forward": "5ea4f52ef486",
            "Exaone4Attention.__init__": "bff7f824b242",
            "Exaone4Attention.forward": "92e628ee536f",
            "Exaone4MLP.forward": "03df2d7685cf",
            "Exaone4RMSNorm.forward": "790fa612e4fa",
            "apply_rotary_pos_emb": "ea234325c15d",
        },
    ),
    **_of(
        "ernie4_5",
        {
            "Ernie4_5DecoderLayer.forward": "75d1d62e173e",
            "Ernie4_5Attention.__init__": "48e0f97458a6",
            "Ernie4_5Attention.forward": "dc6807936ef6",
            "Ernie4_5MLP.forward": "03df2d7685cf",
            "Ernie4_5RMSNorm.forward": "790fa612e4fa",
            "apply_rotary_pos_emb": "808e718766d5",
            "rotate_half": "cb42e3220a99",
        },
    ),
    **_of(
        "helium",
        {
            "HeliumDecoderLayer.forward": "75d1d62e173e",
            "HeliumAttention.__init__": "b519bcbd48e2",
            "HeliumAttention.forward": "dc6807936ef6",
            "HeliumMLP.forward": "03df2d7685cf",
            "HeliumRMSNorm.forward": "351d497dcdfd",
            "apply_rotary_pos_emb": "c2b99e6f6a8b",
            "rotate_half": "cb42e3220a99",
        },
    ),
    **_of(
        "glm",
        {
            "GlmDecoderLayer.forward": "75d1d62e173e",
            "GlmAttention.__init__": "f74075ab9286",
            "GlmAttention.forward": "dc6807936ef6",
            "GlmMLP.forward": "5574ea9d1470",
            "GlmRMSNorm.forward": "790fa612e4fa",
            "apply_rotary_pos_emb": "d2c71031dd2f",
            "rotate_half": "cb42e3220a99",
        },
    ),
    **_of(
        "glm4",
        {
            "Glm4DecoderLayer.forward": "88e5e9adb7f6",
            "Glm4Attention.__init__": "980b420eceb6",
            "Glm4Attention.forward": "dc6807936ef6",
            "Glm4MLP.forward": "5574ea9d1470",
            "Glm4RMSNorm.forward": "790fa612e4fa",
            "apply_rotary_pos_emb": "d2c71031dd2f",
            "rotate_half": "cb42e3220a99",
        },
    ),
    **_of(
        "cohere",
        {
            "CohereDecoderLayer.forward": "32fc138d9951",
            "CohereAttention.__init__": "5ce8940105dc",
            "CohereAttention.forward": "edc29da57c7c",
            "CohereMLP.forward": "03df2d7685cf",
            "apply_rotary_pos_emb": "17f39f35260b",
            "rotate_half": "d635d752cea6",
        },
    ),
    **_of(
        "cohere2",
        {
            "Cohere2DecoderLayer.forward": "df685dfed4da",
            "Cohere2Attention.__init__": "fb0ba7103532",
            "Cohere2Attention.forward": "7daebe13033c",
            "Cohere2MLP.forward": "03df2d7685cf",
            "apply_rotary_pos_emb": "17f39f35260b",
            "rotate_half": "d635d752cea6",
        },
    ),
    **_of(
        "olmo",
        {
            "OlmoDecoderLayer.forward": "75d1d62e173e",
            "OlmoAttention.__init__": "68e3052ee85f",
            "OlmoAttention.forward": "87924c0ea3b4",
            "OlmoMLP.forward": "03df2d7685cf",
            "apply_rotary_pos_emb": "8ec8ad602003",
        },
    ),
    **_of(
        "hunyuan_v1_dense",
        {
            "HunYuanDenseV1DecoderLayer.forward": "75d1d62e173e",
            "HunYuanDenseV1Attention.__init__": "318d5cb7a273",
            "HunYuanDenseV1Attention.forward": "55a49ba2c69c",
            "HunYuanDenseV1MLP.forward": "03df2d7685cf",
            "HunYuanDenseV1RMSNorm.forward": "790fa612e4fa",
            "apply_rotary_pos_emb": "ea234325c15d",
        },
    ),
    **_of(
        "arcee",
        {
            "ArceeDecoderLayer.forward": "75d1d62e173e",
            "ArceeAttention.__init__": "1b8cdf0d3ada",
            "ArceeAttention.forward": "dc6807936ef6",
            "ArceeRMSNorm.forward": "790fa612e4fa",
            "apply_rotary_pos_emb": "ea234325c15d",
        },
    ),
    **_of(
        "mixtral",
        {
            "MixtralDecoderLayer.forward": "681505db8893",
            "MixtralAttention.__init__": "a4e03f43b803",
            "MixtralAttention.forward": "98e841a5cfba",
            "MixtralRMSNorm.forward": "790fa612e4fa",
            "apply_rotary_pos_emb": "ea234325c15d",
        },
    ),
    **_of(
        "qwen3_moe",
        {
            "Qwen3MoeDecoderLayer.forward": "75d1d62e173e",
            "Qwen3MoeAttention.__init__": "ef490e3e046e",
            "Qwen3MoeAttention.forward": "6c8fb032ff37",
            "Qwen3MoeRMSNorm.forward": "790fa612e4fa",
            "apply_rotary_pos_emb": "ea234325c15d",
        },
    ),
    **_of(
        "starcoder2",
        {
            "Starcoder2DecoderLayer.forward": "75d1d62e173e",
            "Starcoder2Attention.__init__": "9eee2edfbf0a",
            "Starcoder2Attention.forward": "0a44ea6874db",
            "apply_rotary_pos_emb": "ea234325c15d",
        },
    ),
    **_of(
        "jais2",
        {
            "Jais2DecoderLayer.forward": "75d1d62e173e",
            "Jais2Attention.__init__": "edf4fe9f4c50",
            "Jais2Attention.forward": "dc6807936ef6",
            "apply_rotary_pos_emb": "ea234325c15d",
        },
    ),
    **_of(
        "nemotron",
        {
            "NemotronDecoderLayer.forward": "bef548987f4a",
            "NemotronAttention.__init__": "891c512c9d0d",
            "NemotronAttention.forward": "7ad1c6cfa215",
            "apply_rotary_pos_emb": "0d9673ea9e46",
        },
    ),
}
"""What engine/patches/half_blocks.py reproduces -> the hash of its source."""

BACKBONES: dict[str, str] = {
    **_of(
        "seed_oss",
        {
            "SeedOssModel.forward": "47acaf965388",
        },
    ),
    **_of(
        "ministral3",
        {
            "Ministral3Model.forward": "a42aa8193426",
        },
    ),
    **_of(
        "exaone4",
        {
            "Exaone4Model.forward": "31f70e318de2",
        },
    ),
    **_of(
        "ernie4_5",
        {
            "Ernie4_5Model.forward": "47acaf965388",
        },
    ),
    **_of(
        "helium",
        {
            "HeliumModel.forward": "47acaf965388",
        },
    ),
    **_of(
        "glm",
        {
            "GlmModel.forward": "47acaf965388",
        },
    ),
    **_of(
        "glm4",
        {
            "Glm4Model.forward": "47acaf965388",
        },
    ),
    **_of(
        "cohere",
        {
            "CohereModel.forward": "47acaf965388",
        },
    ),
    **_of(
        "cohere2",
        {
            "Cohere2Model.forward": "f51ada74bf5d",
        },
    ),
    **_of(
        "olmo",
        {
            "OlmoModel.forward": "47acaf965388",
        },
    ),
    **_of(
        "hunyuan_v1_dense",
        {
            "HunYuanDenseV1Model.forward": "47acaf965388",
        },
    ),
    **_of(
        "arcee",
        {
            "ArceeModel.forward": "47acaf965388",
        },
    ),
    **_of(
        "mixtral",
        {
            "MixtralModel.forward": "82c795350c8d",
        },
    ),
    **_of(
        "qwen3_moe",
        {
            "Qwen3MoeModel.forward": "82c795350c8d",
        },
    ),
    **_of(
        "starcoder2",
        {
            "Starcoder2Model.forward": "4e523da19d05",
        },
    ),
    **_of(
        "jais2",
        {
            "Jais2Model.forward": "47acaf965388",
        },
    ),
    **_of(
        "nemotron",
        {
            "NemotronModel.forward": "2d4ae4142225",
        },
    ),
}
"""What engine/patches/decoder.py calls -> the hash of its source."""
