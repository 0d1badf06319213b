"""What others keep to themselves and we lean on, pinned: a new release that changes it fails here
by name, and says which of our files to look at. Then adapt that file, or take the new hash over.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
from typing import Any

import pytest
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling
from trl.trainer.utils import FusedCausalLMOutput, add_fused_lm_head

from tunesmith_worker.engine.patches.families import FAMILIES

from . import pins

HYPERCLOVAX = "transformers.models.hyperclovax.modeling_hyperclovax:"
VAULTGEMMA = "transformers.models.vaultgemma.modeling_vaultgemma:"
MINISTRAL = "transformers.models.ministral.modeling_ministral:"

PINNED: dict[str, dict[str, str]] = {
    "engine/patches/half_blocks.py": {
        "transformers.models.llama.modeling_llama:LlamaDecoderLayer.forward": "75d1d62e173e",
        "transformers.models.llama.modeling_llama:LlamaAttention.__init__": "0908be3a26b1",
        "transformers.models.llama.modeling_llama:LlamaAttention.forward": "dc6807936ef6",
        "transformers.models.llama.modeling_llama:LlamaMLP.forward": "03df2d7685cf",
        "transformers.models.llama.modeling_llama:LlamaRMSNorm.forward": "790fa612e4fa",
        "transformers.models.mistral.modeling_mistral:MistralDecoderLayer.forward": "75d1d62e173e",
        "transformers.models.mistral.modeling_mistral:MistralAttention.__init__": "3649c1cd2e11",
        "transformers.models.mistral.modeling_mistral:MistralAttention.forward": "98e841a5cfba",
        "transformers.models.mistral.modeling_mistral:MistralMLP.forward": "03df2d7685cf",
        "transformers.models.mistral.modeling_mistral:MistralRMSNorm.forward": "790fa612e4fa",
        "transformers.models.qwen2.modeling_qwen2:Qwen2DecoderLayer.forward": "75d1d62e173e",
        "transformers.models.qwen2.modeling_qwen2:Qwen2Attention.__init__": "aa9c5514fb42",
        "transformers.models.qwen2.modeling_qwen2:Qwen2Attention.forward": "3d7ae1485294",
        "transformers.models.qwen2.modeling_qwen2:Qwen2MLP.forward": "03df2d7685cf",
        "transformers.models.qwen2.modeling_qwen2:Qwen2RMSNorm.forward": "790fa612e4fa",
        "transformers.models.qwen3.modeling_qwen3:Qwen3DecoderLayer.forward": "75d1d62e173e",
        "transformers.models.qwen3.modeling_qwen3:Qwen3Attention.__init__": "6419143ef443",
        "transformers.models.qwen3.modeling_qwen3:Qwen3Attention.forward": "6c8fb032ff37",
        "transformers.models.qwen3.modeling_qwen3:Qwen3MLP.forward": "03df2d7685cf",
        "transformers.models.qwen3.modeling_qwen3:Qwen3RMSNorm.forward": "790fa612e4fa",
        "transformers.models.smollm3.modeling_smollm3:SmolLM3DecoderLayer.forward": "75d1d62e173e",
        "transformers.models.smollm3.modeling_smollm3:SmolLM3Attention.__init__": "b86ef68f3ed5",
        "transformers.models.smollm3.modeling_smollm3:SmolLM3Attention.forward": "7311e18444d8",
        "transformers.models.smollm3.modeling_smollm3:SmolLM3MLP.forward": "03df2d7685cf",
        "transformers.models.smollm3.modeling_smollm3:SmolLM3RMSNorm.forward": "790fa612e4fa",
        "transformers.models.granite.modeling_granite:GraniteDecoderLayer.forward": "150c35a37ba1",
        "transformers.models.granite.modeling_granite:GraniteAttention.__init__": "a0e94c91755a",
        "transformers.models.granite.modeling_granite:GraniteAttention.forward": "dc6807936ef6",
        "transformers.models.granite.modeling_granite:GraniteMLP.forward": "03df2d7685cf",
        "transformers.models.granite.modeling_granite:GraniteRMSNorm.forward": "790fa612e4fa",
        "transformers.models.gemma2.modeling_gemma2:Gemma2DecoderLayer.forward": "5f227c605490",
        "transformers.models.gemma2.modeling_gemma2:Gemma2Attention.__init__": "d931190e71dc",
        "transformers.models.gemma2.modeling_gemma2:Gemma2Attention.forward": "7da2c26d036c",
        "transformers.models.gemma2.modeling_gemma2:Gemma2MLP.forward": "03df2d7685cf",
        "transformers.models.gemma2.modeling_gemma2:Gemma2RMSNorm.forward": "f0b8f39a8b24",
        "transformers.models.gemma3.modeling_gemma3:Gemma3DecoderLayer.forward": "192b8a5ec4fa",
        "transformers.models.gemma3.modeling_gemma3:Gemma3Attention.__init__": "8a8d42142e3b",
        "transformers.models.gemma3.modeling_gemma3:Gemma3Attention.forward": "c96be90cc1da",
        "transformers.models.gemma3.modeling_gemma3:Gemma3MLP.forward": "03df2d7685cf",
        "transformers.models.gemma3.modeling_gemma3:Gemma3RMSNorm.forward": "2a18f679fdfe",
        "transformers.models.olmo2.modeling_olmo2:Olmo2DecoderLayer.forward": "5ea4f52ef486",
        "transformers.models.olmo2.modeling_olmo2:Olmo2Attention.__init__": "202f2027df76",
        "transformers.models.olmo2.modeling_olmo2:Olmo2Attention.forward": "ca60cd7c3508",
        "transformers.models.olmo2.modeling_olmo2:Olmo2MLP.forward": "03df2d7685cf",
        "transformers.models.olmo2.modeling_olmo2:Olmo2RMSNorm.forward": "d648a8514289",
        "transformers.models.phi3.modeling_phi3:Phi3DecoderLayer.forward": "d9c19cbe2c39",
        "transformers.models.phi3.modeling_phi3:Phi3Attention.__init__": "a6813c972514",
        "transformers.models.phi3.modeling_phi3:Phi3Attention.forward": "609bcef01ad9",
        "transformers.models.phi3.modeling_phi3:Phi3MLP.forward": "5574ea9d1470",
        "transformers.models.phi3.modeling_phi3:Phi3RMSNorm.forward": "790fa612e4fa",
        f"{MINISTRAL}MinistralDecoderLayer.forward": "75d1d62e173e",
        f"{MINISTRAL}MinistralAttention.__init__": "31c931141558",
        f"{MINISTRAL}MinistralAttention.forward": "3d7ae1485294",
        f"{MINISTRAL}MinistralMLP.forward": "03df2d7685cf",
        f"{MINISTRAL}MinistralRMSNorm.forward": "790fa612e4fa",
        "transformers.models.cwm.modeling_cwm:CwmDecoderLayer.forward": "75d1d62e173e",
        "transformers.models.cwm.modeling_cwm:CwmAttention.__init__": "92b4f1587f19",
        "transformers.models.cwm.modeling_cwm:CwmAttention.forward": "3d7ae1485294",
        "transformers.models.cwm.modeling_cwm:CwmMLP.forward": "03df2d7685cf",
        "transformers.models.cwm.modeling_cwm:CwmRMSNorm.forward": "790fa612e4fa",
        "transformers.models.gemma.modeling_gemma:GemmaDecoderLayer.forward": "75d1d62e173e",
        "transformers.models.gemma.modeling_gemma:GemmaAttention.__init__": "28a797746c19",
        "transformers.models.gemma.modeling_gemma:GemmaAttention.forward": "dc6807936ef6",
        "transformers.models.gemma.modeling_gemma:GemmaMLP.forward": "03df2d7685cf",
        "transformers.models.gemma.modeling_gemma:GemmaRMSNorm.forward": "9e57d8928736",
        f"{VAULTGEMMA}VaultGemmaDecoderLayer.forward": "d769c9b5b15e",
        f"{VAULTGEMMA}VaultGemmaAttention.__init__": "3298952c363c",
        f"{VAULTGEMMA}VaultGemmaAttention.forward": "7da2c26d036c",
        f"{VAULTGEMMA}VaultGemmaMLP.forward": "03df2d7685cf",
        f"{VAULTGEMMA}VaultGemmaRMSNorm.forward": "f3e813c72d85",
        "transformers.models.olmo3.modeling_olmo3:Olmo3DecoderLayer.forward": "5ea4f52ef486",
        "transformers.models.olmo3.modeling_olmo3:Olmo3Attention.__init__": "35730b443753",
        "transformers.models.olmo3.modeling_olmo3:Olmo3Attention.forward": "2cee658ac6ad",
        "transformers.models.olmo3.modeling_olmo3:Olmo3MLP.forward": "03df2d7685cf",
        "transformers.models.olmo3.modeling_olmo3:Olmo3RMSNorm.forward": "d648a8514289",
        f"{HYPERCLOVAX}HyperCLOVAXDecoderLayer.forward": "7f32ceb05750",
        f"{HYPERCLOVAX}HyperCLOVAXAttention.__init__": "008ed6f61f64",
        f"{HYPERCLOVAX}HyperCLOVAXAttention.forward": "dc6807936ef6",
        f"{HYPERCLOVAX}HyperCLOVAXMLP.forward": "03df2d7685cf",
        f"{HYPERCLOVAX}HyperCLOVAXRMSNorm.forward": "790fa612e4fa",
        "transformers.models.llama.modeling_llama:apply_rotary_pos_emb": "ea234325c15d",
        "transformers.models.mistral.modeling_mistral:apply_rotary_pos_emb": "ea234325c15d",
        "transformers.models.qwen2.modeling_qwen2:apply_rotary_pos_emb": "ea234325c15d",
        "transformers.models.qwen3.modeling_qwen3:apply_rotary_pos_emb": "ea234325c15d",
        "transformers.models.smollm3.modeling_smollm3:apply_rotary_pos_emb": "ea234325c15d",
        "transformers.models.granite.modeling_granite:apply_rotary_pos_emb": "ea234325c15d",
        "transformers.models.gemma2.modeling_gemma2:apply_rotary_pos_emb": "ea234325c15d",
        "transformers.models.gemma3.modeling_gemma3:apply_rotary_pos_emb": "ea234325c15d",
        "transformers.models.olmo2.modeling_olmo2:apply_rotary_pos_emb": "8ec8ad602003",
        "transformers.models.phi3.modeling_phi3:apply_rotary_pos_emb": "0d2d41fdeeda",
        f"{MINISTRAL}apply_rotary_pos_emb": "ea234325c15d",
        "transformers.models.cwm.modeling_cwm:apply_rotary_pos_emb": "ea234325c15d",
        "transformers.models.gemma.modeling_gemma:apply_rotary_pos_emb": "ea234325c15d",
        f"{VAULTGEMMA}apply_rotary_pos_emb": "ea234325c15d",
        "transformers.models.olmo3.modeling_olmo3:apply_rotary_pos_emb": "8ec8ad602003",
        f"{HYPERCLOVAX}apply_rotary_pos_emb": "ea234325c15d",
        **pins.LAYERS,
    },
    "engine/patches/decoder.py": {
        "transformers.modeling_layers:GradientCheckpointingLayer.__init_subclass__": "2fe55f666f1f",
        "transformers.models.llama.modeling_llama:LlamaModel.forward": "47acaf965388",
        "transformers.models.mistral.modeling_mistral:MistralModel.forward": "a42aa8193426",
        "transformers.models.qwen2.modeling_qwen2:Qwen2Model.forward": "7fb64c79b3dd",
        "transformers.models.qwen3.modeling_qwen3:Qwen3Model.forward": "7fb64c79b3dd",
        "transformers.models.smollm3.modeling_smollm3:SmolLM3Model.forward": "7fb64c79b3dd",
        "transformers.models.granite.modeling_granite:GraniteModel.forward": "e15428838f0b",
        "transformers.models.gemma2.modeling_gemma2:Gemma2Model.forward": "ba8debfa84ea",
        "transformers.models.gemma3.modeling_gemma3:Gemma3TextModel.forward": "2741a7e34189",
        "transformers.models.olmo2.modeling_olmo2:Olmo2Model.forward": "47acaf965388",
        "transformers.models.phi3.modeling_phi3:Phi3Model.forward": "a42aa8193426",
        f"{MINISTRAL}MinistralModel.forward": "2ddfbfec394b",
        "transformers.models.cwm.modeling_cwm:CwmModel.forward": "4c294e6138a5",
        "transformers.models.gemma.modeling_gemma:GemmaModel.forward": "08eb64d247bd",
        f"{VAULTGEMMA}VaultGemmaModel.forward": "ba8debfa84ea",
        "transformers.models.olmo3.modeling_olmo3:Olmo3Model.forward": "1b33d278573b",
        f"{HYPERCLOVAX}HyperCLOVAXModel.forward": "e15428838f0b",
        **pins.BACKBONES,
    },
    "engine/patches/head.py": {
        "trl.trainer.utils:FusedCausalLMOutput": "5ccdd6e41dcb",
        "trl.trainer.utils:add_fused_lm_head": "422d009f04b6",
    },
    "engine/patches/projections.py": {
        "peft.tuners.lora.layer:Linear.forward": "ec0a80f5c5ce",
        "peft.tuners.lora.layer:Linear.lora_variants.fget": "95dee985c25b",
        "peft.tuners.lora.layer:LoraLayer._cast_input_dtype": "244f7bafd644",
    },
    "engine/patches/attention_interface.py": {
        "transformers.integrations.sdpa_attention:sdpa_attention_forward": "e3d016070b6a",
        "transformers.masking_utils:_preprocess_mask_arguments": "df23eb733c6e",
        "transformers.models.gemma2.modeling_gemma2:eager_attention_forward": "587d5b52cc6f",
    },
    "trainer/methods/sft.py": {
        "accelerate.data_loader:DataLoaderShard.__iter__": "77b896b76f3c",
        "transformers.trainer:Trainer._get_grad_norm": "913ba6f52f07",
        "transformers.trainer:Trainer.get_batch_samples": "0b3727386f73",
        "trl.trainer.sft_trainer:DataCollatorForLanguageModeling.torch_call": "e9f4cd36d5ba",
    },
}

"""Our file -> what it reproduces or replaces -> the hash of its source in transformers 5.23.0, PEFT
0.21.2 and TRL 1.16.0."""


def _find(path: str) -> Any:  # Any: a function or class of an untyped library
    module, _, names = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize(
    ("ours", "theirs"), [(ours, theirs) for ours, found in PINNED.items() for theirs in found]
)
def test_its_source_is_the_one_we_read(ours: str, theirs: str) -> None:
    source = inspect.getsource(_find(theirs))
    found = hashlib.sha256(source.encode()).hexdigest()[:12]
    assert found == PINNED[ours][theirs], f"{theirs} has changed: look at {ours}"


def test_every_family_is_pinned() -> None:
    pinned = {
        path.partition(":")[2].split(".")[0] for path in PINNED["engine/patches/half_blocks.py"]
    }
    assert pinned >= FAMILIES.keys(), "a family without a pin: look at engine/patches/families.py"


def test_the_fused_heads_output_has_the_fields_that_we_fill() -> None:
    fields = [field.name for field in dataclasses.fields(FusedCausalLMOutput)]
    assert fields == [
        "loss",
        "log_probs",
        "entropy",
        "log_sum_sq_probs",
        "mean_logits",
        "is_top1",
        "label_mask",
        "aux_loss",
    ], "TRL scores more or less than before: look at engine/patches/head.py"


def test_the_fused_head_takes_what_we_pass_on() -> None:
    parameters = list(inspect.signature(add_fused_lm_head).parameters)
    assert parameters == ["model", "temperature", "cast_lm_head_to_fp32", "outputs"], (
        "TRL's head has another option: look at engine/patches/head.py"
    )


def test_a_batch_without_padding_says_where_its_rows_lie() -> None:
    """cu_seq_lens_q is what tells us; the first token of a row has no label."""
    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    batch = collator([{"input_ids": [5, 6, 7]}, {"input_ids": [8]}, {"input_ids": [9, 10]}])
    assert sorted(batch) == [
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "input_ids",
        "labels",
        "max_length_k",
        "max_length_q",
        "position_ids",
        "seq_idx",
    ], "TRL's collator has other keys: look at engine/patches/decoder.py"
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 4, 6]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 0, 1]]
    assert batch["labels"].tolist() == [[-100, 6, 7, -100, -100, 10]]


def test_a_packed_row_says_where_its_documents_lie() -> None:
    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    rows = [
        {"input_ids": [5, 6, 7, 8], "labels": [5, 6, 7, 8], "seq_lengths": [3, 1]},
        {"input_ids": [9, 10], "labels": [9, 10], "seq_lengths": [2]},
    ]
    batch = collator(rows)
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 4, 6]
    assert batch["labels"].tolist() == [[-100, 6, 7, -100, -100, 10]]


def test_transformers_registries_take_our_attention_beside_their_own() -> None:
    """attention_interface.py looks the name up in the configuration at every forward."""
    for registry in (AttentionInterface, AttentionMaskInterface):
        assert callable(registry.register)
        assert "sdpa" in registry().valid_keys(), "look at engine/patches/attention_interface.py"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_decoder_layer_takes_its_hidden_states_first(name: str) -> None:
    (path,) = (
        path
        for path in PINNED["engine/patches/half_blocks.py"]
        if path.endswith(f":{name}.forward")
    )
    parameters = list(inspect.signature(_find(path)).parameters)
    assert parameters[:2] == ["self", "hidden_states"], "look at engine/patches/decoder.py"
    assert {"position_embeddings", "attention_mask", "kwargs"} <= set(parameters)


def test_the_trainers_metrics_are_where_a_repeated_step_puts_them_back() -> None:
    """engine/patches/trl_compat.py: metrics_so_far and restore_metrics."""
    source = inspect.getsource(_find("trl.trainer.sft_trainer:SFTTrainer.__init__"))
    assert 'self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}' in source
    assert "self._total_train_tokens = 0" in source
