"""Shared prompts in models whose rows are not plain linear layers of a dense model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.worker.engine.patches.models import (
    COMMON,
    FAMILIES,
    assert_same_gradients,
    model_of,
    relative_rms,
    scored_by_trl,
    with_lora,
)
from tunesmith_worker.engine.model.quantization import fix_nf4_layout, quantization_config
from tunesmith_worker.engine.patches import patch

from .group_rows import make_rows, trained

Untyped = Any  # Any: transformers and PEFT are not typed


def _assert_shared_is_plain(model: Untyped, among: str) -> None:
    rows = make_rows()
    plain, expected = trained(model, rows, "plain", temperature=0.7)
    shared, found = trained(model, rows, "shared", temperature=0.7)
    assert (plain.layout, shared.layout) == ("plain", "shared")
    assert relative_rms(shared.log_probs.detach(), plain.log_probs.detach()) <= 1e-6
    assert any(among in name and bool(one.any()) for name, one in expected.items())
    assert_same_gradients(found, expected)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_token_rows(tied: bool) -> None:
    config = FAMILIES["qwen3"]()
    config.tie_word_embeddings = tied
    ids = [5, 9, 77, 130]
    indices = {"embed_tokens": ids} if tied else {"embed_tokens": ids, "lm_head": ids}
    model = with_lora(model_of(config), trainable_token_indices=indices)
    model.get_base_model().get_output_embeddings().bias = None  # TRL asks for it
    report = patch(scored_by_trl(model)).report
    assert report.counts["token_rows"] == 1
    _assert_shared_is_plain(model, "trainable_tokens_delta")


def test_a_base_in_nf4(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128}
    model_of(transformers.LlamaConfig(**COMMON | sizes)).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=quantization_config("nf4", torch.float32)
    )
    fix_nf4_layout(model)
    model = scored_by_trl(with_lora(model))
    patch(model)
    _assert_shared_is_plain(model, "lora_A")


def test_dora_whose_half_blocks_stay_stock() -> None:
    """Attention is asked for by transformers' own layer."""
    model = scored_by_trl(with_lora(model_of(FAMILIES["gemma2"]()), use_dora=True))
    report = patch(model).report
    assert report.counts["attention_block"] == 0
    assert report.counts["attention"] == 3
    _assert_shared_is_plain(model, "lora_magnitude_vector")
