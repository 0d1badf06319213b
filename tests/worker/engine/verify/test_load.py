"""Reading a saved adapter back leaves the trained model as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from tests.worker.engine.patches.models import VOCABULARY
from tunesmith_worker.engine.verify import load_adapter, structure_kept, unwrap

Untyped = Any  # Any: transformers and PEFT are not typed

SETTINGS: dict[str, dict[str, Any]] = {
    "biases": {"bias": "all"},
    "whole head": {"modules_to_save": ["lm_head"]},
    "token rows": {"trainable_token_indices": [3, 5]},
}


def make(seed: int, **settings: Any) -> Untyped:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=False,
    )
    base = transformers.AutoModelForCausalLM.from_config(config)
    lora = peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"], **settings)
    model = peft.get_peft_model(base, lora)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.1)
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", SETTINGS)
def test_a_model_is_restored_after_another_adapter_was_loaded(tmp_path: Path, kind: str) -> None:
    make(1, **SETTINGS[kind]).save_pretrained(tmp_path)
    model = make(2, **SETTINGS[kind])
    ids = torch.arange(8)[None]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trained = {name: p.requires_grad for name, p in model.named_parameters()}
    logits = model(ids).logits
    with structure_kept(model):
        other = load_adapter(unwrap(model), tmp_path)(ids).logits
    assert not torch.equal(other, logits)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == trained
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(ids).logits, logits)
