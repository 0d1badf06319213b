"""What others keep to themselves and we lean on, pinned: a new release that changes it fails here
by name, and says which of our files to look at. Then adapt that file, or take the new hash over.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import inspect
import textwrap
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
        "transformers.models.llama.modeling_llama:LlamaDecoderLayer.forward": "1a8125909341",
        "transformers.models.llama.modeling_llama:LlamaAttention.__init__": "db3a55058138",
        "transformers.models.llama.modeling_llama:LlamaAttention.forward": "865d17a1b6ed",
        "transformers.models.llama.modeling_llama:LlamaMLP.forward": "7d2027d4464e",
        "transformers.models.llama.modeling_llama:LlamaRMSNorm.forward": "9635bcd843f3",
        "transformers.models.mistral.modeling_mistral:MistralDecoderLayer.forward": "1a8125909341",
        "transformers.models.mistral.modeling_mistral:MistralAttention.__init__": "3d33dd3d1835",
        "transformers.models.mistral.modeling_mistral:MistralAttention.forward": "38eb7a675fc0",
        "transformers.models.mistral.modeling_mistral:MistralMLP.forward": "7d2027d4464e",
        "transformers.models.mistral.modeling_mistral:MistralRMSNorm.forward": "9635bcd843f3",
        "transformers.models.qwen2.modeling_qwen2:Qwen2DecoderLayer.forward": "1a8125909341",
        "transformers.models.qwen2.modeling_qwen2:Qwen2Attention.__init__": "deb829bfa667",
        "transformers.models.qwen2.modeling_qwen2:Qwen2Attention.forward": "467d2e0bba2f",
        "transformers.models.qwen2.modeling_qwen2:Qwen2MLP.forward": "7d2027d4464e",
        "transformers.models.qwen2.modeling_qwen2:Qwen2RMSNorm.forward": "9635bcd843f3",
        "transformers.models.qwen3.modeling_qwen3:Qwen3DecoderLayer.forward": "1a8125909341",
        "transformers.models.qwen3.modeling_qwen3:Qwen3Attention.__init__": "1cfecdaab3d1",
        "transformers.models.qwen3.modeling_qwen3:Qwen3Attention.forward": "e0b15d778eec",
        "transformers.models.qwen3.modeling_qwen3:Qwen3MLP.forward": "7d2027d4464e",
        "transformers.models.qwen3.modeling_qwen3:Qwen3RMSNorm.forward": "9635bcd843f3",
        "transformers.models.smollm3.modeling_smollm3:SmolLM3DecoderLayer.forward": "1a8125909341",
        "transformers.models.smollm3.modeling_smollm3:SmolLM3Attention.__init__": "2ceda1c0b0c2",
        "transformers.models.smollm3.modeling_smollm3:SmolLM3Attention.forward": "ee1ec5431be6",
        "transformers.models.smollm3.modeling_smollm3:SmolLM3MLP.forward": "7d2027d4464e",
        "transformers.models.smollm3.modeling_smollm3:SmolLM3RMSNorm.forward": "9635bcd843f3",
        "transformers.models.granite.modeling_granite:GraniteDecoderLayer.forward": "bb8119d990e3",
        "transformers.models.granite.modeling_granite:GraniteAttention.__init__": "10d1a850db86",
        "transformers.models.granite.modeling_granite:GraniteAttention.forward": "865d17a1b6ed",
        "transformers.models.granite.modeling_granite:GraniteMLP.forward": "7d2027d4464e",
        "transformers.models.granite.modeling_granite:GraniteRMSNorm.forward": "9635bcd843f3",
        "transformers.models.gemma2.modeling_gemma2:Gemma2DecoderLayer.forward": "eb03c623c021",
        "transformers.models.gemma2.modeling_gemma2:Gemma2Attention.__init__": "4b9a21fed02e",
        "transformers.models.gemma2.modeling_gemma2:Gemma2Attention.forward": "c2f961b6c924",
        "transformers.models.gemma2.modeling_gemma2:Gemma2MLP.forward": "7d2027d4464e",
        "transformers.models.gemma2.modeling_gemma2:Gemma2RMSNorm.forward": "2dad5f576075",
        "transformers.models.gemma3.modeling_gemma3:Gemma3DecoderLayer.forward": "eb03c623c021",
        "transformers.models.gemma3.modeling_gemma3:Gemma3Attention.__init__": "c18ede080d64",
        "transformers.models.gemma3.modeling_gemma3:Gemma3Attention.forward": "fd49946edd27",
        "transformers.models.gemma3.modeling_gemma3:Gemma3MLP.forward": "7d2027d4464e",
        "transformers.models.gemma3.modeling_gemma3:Gemma3RMSNorm.forward": "2dad5f576075",
        "transformers.models.olmo2.modeling_olmo2:Olmo2DecoderLayer.forward": "47f108ddd245",
        "transformers.models.olmo2.modeling_olmo2:Olmo2Attention.__init__": "2747c8367f42",
        "transformers.models.olmo2.modeling_olmo2:Olmo2Attention.forward": "4e06ba3cadcb",
        "transformers.models.olmo2.modeling_olmo2:Olmo2MLP.forward": "7d2027d4464e",
        "transformers.models.olmo2.modeling_olmo2:Olmo2RMSNorm.forward": "eef4e978a32a",
        "transformers.models.phi3.modeling_phi3:Phi3DecoderLayer.forward": "df580f10cfd4",
        "transformers.models.phi3.modeling_phi3:Phi3Attention.__init__": "0a56a5517ee2",
        "transformers.models.phi3.modeling_phi3:Phi3Attention.forward": "0a3241646364",
        "transformers.models.phi3.modeling_phi3:Phi3MLP.forward": "e8d404cbecb9",
        "transformers.models.phi3.modeling_phi3:Phi3RMSNorm.forward": "9635bcd843f3",
        f"{MINISTRAL}MinistralDecoderLayer.forward": "1a8125909341",
        f"{MINISTRAL}MinistralAttention.__init__": "ba99e4ef0b9b",
        f"{MINISTRAL}MinistralAttention.forward": "467d2e0bba2f",
        f"{MINISTRAL}MinistralMLP.forward": "7d2027d4464e",
        f"{MINISTRAL}MinistralRMSNorm.forward": "9635bcd843f3",
        "transformers.models.cwm.modeling_cwm:CwmDecoderLayer.forward": "1a8125909341",
        "transformers.models.cwm.modeling_cwm:CwmAttention.__init__": "392847dbc51b",
        "transformers.models.cwm.modeling_cwm:CwmAttention.forward": "467d2e0bba2f",
        "transformers.models.cwm.modeling_cwm:CwmMLP.forward": "7d2027d4464e",
        "transformers.models.cwm.modeling_cwm:CwmRMSNorm.forward": "9635bcd843f3",
        "transformers.models.gemma.modeling_gemma:GemmaDecoderLayer.forward": "1a8125909341",
        "transformers.models.gemma.modeling_gemma:GemmaAttention.__init__": "561a2ab081bc",
        "transformers.models.gemma.modeling_gemma:GemmaAttention.forward": "865d17a1b6ed",
        "transformers.models.gemma.modeling_gemma:GemmaMLP.forward": "7d2027d4464e",
        "transformers.models.gemma.modeling_gemma:GemmaRMSNorm.forward": "2dad5f576075",
        f"{VAULTGEMMA}VaultGemmaDecoderLayer.forward": "4eaa37c3b971",
        f"{VAULTGEMMA}VaultGemmaAttention.__init__": "4e302a6629e1",
        f"{VAULTGEMMA}VaultGemmaAttention.forward": "c2f961b6c924",
        f"{VAULTGEMMA}VaultGemmaMLP.forward": "7d2027d4464e",
        f"{VAULTGEMMA}VaultGemmaRMSNorm.forward": "2dad5f576075",
        "transformers.models.olmo3.modeling_olmo3:Olmo3DecoderLayer.forward": "47f108ddd245",
        "transformers.models.olmo3.modeling_olmo3:Olmo3Attention.__init__": "4e4de0091d70",
        "transformers.models.olmo3.modeling_olmo3:Olmo3Attention.forward": "a48c59cdaa06",
        "transformers.models.olmo3.modeling_olmo3:Olmo3MLP.forward": "7d2027d4464e",
        "transformers.models.olmo3.modeling_olmo3:Olmo3RMSNorm.forward": "eef4e978a32a",
        f"{HYPERCLOVAX}HyperCLOVAXDecoderLayer.forward": "7f9a3f0f10c3",
        f"{HYPERCLOVAX}HyperCLOVAXAttention.__init__": "10d1a850db86",
        f"{HYPERCLOVAX}HyperCLOVAXAttention.forward": "865d17a1b6ed",
        f"{HYPERCLOVAX}HyperCLOVAXMLP.forward": "7d2027d4464e",
        f"{HYPERCLOVAX}HyperCLOVAXRMSNorm.forward": "9635bcd843f3",
        "transformers.models.llama.modeling_llama:apply_rotary_pos_emb": "f0e978aab1df",
        "transformers.models.mistral.modeling_mistral:apply_rotary_pos_emb": "f0e978aab1df",
        "transformers.models.qwen2.modeling_qwen2:apply_rotary_pos_emb": "f0e978aab1df",
        "transformers.models.qwen3.modeling_qwen3:apply_rotary_pos_emb": "f0e978aab1df",
        "transformers.models.smollm3.modeling_smollm3:apply_rotary_pos_emb": "f0e978aab1df",
        "transformers.models.granite.modeling_granite:apply_rotary_pos_emb": "f0e978aab1df",
        "transformers.models.gemma2.modeling_gemma2:apply_rotary_pos_emb": "f0e978aab1df",
        "transformers.models.gemma3.modeling_gemma3:apply_rotary_pos_emb": "f0e978aab1df",
        "transformers.models.olmo2.modeling_olmo2:apply_rotary_pos_emb": "8012832f83a7",
        "transformers.models.phi3.modeling_phi3:apply_rotary_pos_emb": "9af4c6b9d146",
        f"{MINISTRAL}apply_rotary_pos_emb": "f0e978aab1df",
        "transformers.models.cwm.modeling_cwm:apply_rotary_pos_emb": "f0e978aab1df",
        "transformers.models.gemma.modeling_gemma:apply_rotary_pos_emb": "f0e978aab1df",
        f"{VAULTGEMMA}apply_rotary_pos_emb": "f0e978aab1df",
        "transformers.models.olmo3.modeling_olmo3:apply_rotary_pos_emb": "8012832f83a7",
        f"{HYPERCLOVAX}apply_rotary_pos_emb": "f0e978aab1df",
        **pins.LAYERS,
    },
    "engine/patches/decoder.py": {
        "transformers.modeling_layers:GradientCheckpointingLayer": "223c25a7302e 466f23ced796",
        "transformers.models.llama.modeling_llama:LlamaModel.forward": "3ee4b3154dd9",
        "transformers.models.mistral.modeling_mistral:MistralModel.forward": "3e106c8cfc95",
        "transformers.models.qwen2.modeling_qwen2:Qwen2Model.forward": "7082cc645fa7",
        "transformers.models.qwen3.modeling_qwen3:Qwen3Model.forward": "7082cc645fa7",
        "transformers.models.smollm3.modeling_smollm3:SmolLM3Model.forward": "7082cc645fa7",
        "transformers.models.granite.modeling_granite:GraniteModel.forward": "ea265d188105",
        "transformers.models.gemma2.modeling_gemma2:Gemma2Model.forward": "0ba78b91f73e",
        "transformers.models.gemma3.modeling_gemma3:Gemma3TextModel.forward": "128b85c21ad2",
        "transformers.models.olmo2.modeling_olmo2:Olmo2Model.forward": "3ee4b3154dd9",
        "transformers.models.phi3.modeling_phi3:Phi3Model.forward": "3e106c8cfc95",
        f"{MINISTRAL}MinistralModel.forward": "0da477a85aff",
        "transformers.models.cwm.modeling_cwm:CwmModel.forward": "44392c1c1464",
        "transformers.models.gemma.modeling_gemma:GemmaModel.forward": "0a3474e701f9",
        f"{VAULTGEMMA}VaultGemmaModel.forward": "0ba78b91f73e",
        "transformers.models.olmo3.modeling_olmo3:Olmo3Model.forward": "f7d82b788cda",
        f"{HYPERCLOVAX}HyperCLOVAXModel.forward": "ea265d188105",
        **pins.BACKBONES,
    },
    "engine/patches/head.py": {
        "trl.trainer.utils:FusedCausalLMOutput": "1beadaa18848",
        "trl.trainer.utils:add_fused_lm_head": "dfefc30ad2bc",
    },
    "engine/patches/projections.py": {
        "peft.tuners.lora.layer:Linear.forward": "883865a2889a",
        "peft.tuners.lora.layer:Linear.lora_variants.fget": "b23dd43f153e",
        "peft.tuners.lora.layer:LoraLayer._cast_input_dtype": "0904cced350b",
    },
    "engine/patches/attention_interface.py": {
        "transformers.integrations.sdpa_attention:sdpa_attention_forward": (
            "c6857e7b5991 88039bc66386 2937daa31264 43d75248d76f"
        ),
        "transformers.masking_utils:_preprocess_mask_arguments": "1540bf6cb169",
        "transformers.models.gemma2.modeling_gemma2:eager_attention_forward": "f8809875daa2",
    },
    "trainer/methods/sft.py": {
        "accelerate.data_loader:DataLoaderShard.__iter__": "f6a0dc946182",
        "transformers.trainer:Trainer._get_grad_norm": "b2787642923d",
        "transformers.trainer:Trainer.get_batch_samples": "136c3e89afb3",
        "trl.trainer.sft_trainer:DataCollatorForLanguageModeling.torch_call": "4b328a52b34c",
    },
}

"""Our file -> what it reproduces or replaces -> the hash of its code in transformers 5.23.0, PEFT
0.21.2 and TRL 1.16.0; then, after spaces, its hashes in transformers from 5.17 on."""


def _find(path: str) -> Any:  # Any: a function or class of an untyped library
    module, _, names = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


class _WithoutTypes(ast.NodeTransformer):
    """Removes the types of parameters and results, which change without changing a number."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.returns = None
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return node


def _hash(theirs: str) -> str:
    """Hash the code without comments, types and docstrings."""
    code = ast.parse(textwrap.dedent(inspect.getsource(_find(theirs))))
    return hashlib.sha256(ast.unparse(_WithoutTypes().visit(code)).encode()).hexdigest()[:12]


@pytest.mark.parametrize(
    ("ours", "theirs"), [(ours, theirs) for ours, found in PINNED.items() for theirs in found]
)
def test_its_source_is_the_one_we_read(ours: str, theirs: str) -> None:
    assert _hash(theirs) in PINNED[ours][theirs].split(), f"{theirs} has changed: look at {ours}"


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
