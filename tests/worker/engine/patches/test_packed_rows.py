"""Rows that stand end to end, micro-batches and label counts: each equals one row at a time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import transformers

from tunesmith_worker.engine.patches import patch

from .models import (
    COMMON,
    FAMILIES,
    VOCABULARY,
    assert_same_gradients,
    equal_bits,
    make_tuned,
    model_of,
    packed_batch,
    relative_rms,
    run_step,
    scored_by_trl,
)

Untyped = Any  # Any: transformers and TRL are not typed

LENGTHS = (23, 1, 40, 9, 2, 70, 5, 14)

every_family = pytest.mark.parametrize("family", FAMILIES)


def _rows(batch: dict[str, Untyped]) -> list[dict[str, Untyped]]:
    """Each row of a packed batch as a batch of its own, without anything that says so."""
    bounds = batch["cu_seq_lens_q"].tolist()
    return [
        {name: batch[name][:, start:stop] for name in ("input_ids", "labels")}
        for start, stop in pairwise(bounds)
    ]


def _labels(batch: dict[str, Untyped]) -> int:
    return int((batch["labels"][:, 1:] != -100).sum())


def _accumulated(model: Untyped, batches: list[dict[str, Untyped]]) -> dict[str, torch.Tensor]:
    """The gradients of one optimiser step made of several micro-batches."""
    model.zero_grad()
    total = sum(_labels(batch) for batch in batches)
    for batch in batches:
        model(**batch, fused_lm_head=True, num_items_in_batch=total).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@every_family
def test_packed_rows_train_as_one_row_at_a_time(family: str) -> None:
    """Windows, soft caps, RoPE and labels at boundaries; a row of one token has no label at all."""
    model, batch = make_tuned(family, "full"), packed_batch(LENGTHS)
    rows = _rows(batch)
    assert sum(_labels(row) for row in rows) == _labels(batch)
    expected = _accumulated(model, [row for row in rows if _labels(row)])
    patch(model)
    assert_same_gradients(_accumulated(model, [batch]), expected)


@pytest.mark.parametrize("micro_batches", [1, 2, 4, 8])
def test_accumulation_over_any_number_of_micro_batches_is_one_step(micro_batches: int) -> None:
    """Random lengths and masks: micro-batches hold different numbers of labels."""
    model, whole = make_tuned("llama", "full"), packed_batch(LENGTHS)
    patch(model)
    expected = _accumulated(model, [whole])
    size, bounds = 8 // micro_batches, whole["cu_seq_lens_q"].tolist()
    parts = []
    for first in range(0, 8, size):
        start, stop = bounds[first], bounds[first + size]
        ends = whole["cu_seq_lens_q"][first : first + size + 1] - start
        parts.append(
            {name: whole[name][:, start:stop] for name in ("input_ids", "labels", "position_ids")}
            | {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
        )
    assert micro_batches == 1 or len({_labels(part) for part in parts}) > micro_batches // 2
    assert_same_gradients(_accumulated(model, parts), expected)


@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_a_micro_batch_without_labels_changes_nothing(tuning: str) -> None:
    model = make_tuned("gemma2", tuning)
    patch(model)
    good, empty = packed_batch(), packed_batch(seed=9)
    empty["labels"] = torch.full_like(empty["labels"], -100)
    expected = _accumulated(model, [good])
    assert equal_bits(_accumulated(model, [empty, good, empty]), expected)
    output, gradients = run_step(model, empty)  # and alone it is a step of zero
    assert output.loss.item() == 0.0
    assert not any(bool(gradient.any()) for gradient in gradients.values())


@every_family
def test_a_row_is_bit_for_bit_untouched_by_the_others(family: str) -> None:
    model, batch = make_tuned(family, "lora"), packed_batch()
    patch(model)
    other = {**batch, "input_ids": batch["input_ids"].clone()}
    third = slice(24, 64)
    other["input_ids"][:, third] = (other["input_ids"][:, third] + 50) % VOCABULARY
    one, two = (model(**x, fused_lm_head=True) for x in (batch, other))
    for field in ("log_probs", "entropy"):
        assert torch.equal(one[field][:, :23], two[field][:, :23])
        assert torch.equal(one[field][:, 64:], two[field][:, 64:])
        assert not torch.equal(one[field][:, third], two[field][:, third])


def test_two_batches_of_different_boundaries_share_nothing() -> None:
    model = make_tuned("mistral", "lora")
    batches = [
        packed_batch(lengths) for lengths in ((73,), (36, 37), (5,) * 14 + (3,), (36, 37), (73,))
    ]
    expected = [run_step(model, batch) for batch in batches]
    patch(model)
    for batch, (_, gradients) in zip(batches, expected, strict=True):
        assert_same_gradients(run_step(model, batch)[1], gradients)


ROPES: dict[str, dict[str, Untyped]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    "yarn": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0,
        "original_max_position_embeddings": 16384,
    },
    "llama3": {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    },
    "longrope": {
        "rope_type": "longrope", "rope_theta": 10000.0, "factor": 8.0,
        "original_max_position_embeddings": 4096,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
        "long_factor": [1.0, 2.0, 3.0, 5.0, 9.0, 17.0],
    },
}  # fmt: skip


@pytest.mark.parametrize("rope", ROPES.values(), ids=list(ROPES))
def test_every_kind_of_rope_equals_stock_at_far_positions(rope: dict[str, Untyped]) -> None:
    config = transformers.LlamaConfig(
        **COMMON | {"max_position_embeddings": 131072}, rope_parameters=rope
    )
    model = scored_by_trl(model_of(config))
    batch = packed_batch((9, 9, 9, 9))
    starts = [0, 4091, 32763, 131063]  # the last position is 131,071
    batch["position_ids"] = torch.cat([torch.arange(n, n + 9) for n in starts])[None]
    expected, gradients = run_step(model, batch)
    patch(model)
    ours, found = run_step(model, batch)
    assert relative_rms(ours.log_probs.detach(), expected.log_probs.detach()) <= 1e-5
    assert_same_gradients(found, gradients)


def test_the_frequencies_of_rope_stay_fp32_in_a_bf16_model(tiny_bf16: Untyped) -> None:
    assert tiny_bf16.model.embed_tokens.weight.dtype == torch.bfloat16
    assert tiny_bf16.model.rotary_emb.inv_freq.dtype == torch.float32


@pytest.mark.parametrize("tied", [True, False])
def test_a_padding_token_that_is_also_the_end_of_a_text_trains_as_in_stock(tied: bool) -> None:
    """`padding_idx` takes the gradient from the embedding's row, and not from a tied head's."""
    config = transformers.LlamaConfig(**COMMON | {"pad_token_id": 2}, tie_word_embeddings=tied)
    model, batch = scored_by_trl(model_of(config)), packed_batch()
    batch["input_ids"][0, 5:60:9] = batch["labels"][0, 5:60:9] = 2
    _, expected = run_step(model, batch)
    patch(model)
    _, found = run_step(model, batch)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in expected:
            row = expected[name][2]
            assert bool(row.any()) == (tied or name == "lm_head.weight")
            torch.testing.assert_close(found[name][2], row, rtol=1e-4, atol=1e-6)
    assert_same_gradients(found, expected)


@pytest.mark.parametrize("family", ["llama", "qwen2"])  # a tied head, and one of its own
def test_two_backward_passes_add_up_to_twice_the_gradient(family: str) -> None:
    model, batch = make_tuned(family, "full"), packed_batch()
    patch(model)
    _, once = run_step(model, batch)
    model(**batch, fused_lm_head=True).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, 2 * once[name], rtol=1e-6, atol=1e-7)


@every_family
def test_nothing_saved_for_backward_is_written_to_before_it_is_read(family: str) -> None:
    """Clone guard: autograd's own check does not see writes through other views of the memory."""
    model, batch = make_tuned(family, "lora", lora_dropout=0.2).train(), packed_batch()
    patch(model)

    def pack(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x.detach().clone()

    def unpack(kept: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        assert torch.equal(kept[0], kept[1]), list(kept[0].shape)
        return kept[0]

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, unpack),
        torch.autograd.set_detect_anomaly(True),
    ):
        run_step(model, batch)


def test_a_soft_cap_in_a_nested_text_configuration_is_honoured() -> None:
    text = {**COMMON, "head_dim": 16, "final_logit_softcapping": 3.0, "tie_word_embeddings": True}
    vision = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
    }  # fmt: skip
    config = transformers.Gemma3Config(text_config=text, vision_config=vision)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.Gemma3ForConditionalGeneration(config)
    for parameter in model.parameters():
        parameter.data.mul_(10.0)
    scored_by_trl(model)
    batch = {name: packed_batch((30,))[name] for name in ("input_ids", "labels")}
    expected = model(**batch, fused_lm_head=True)
    report = patch(model).report
    assert report.counts == {"loss": 1}
    ours = model(**batch, fused_lm_head=True)
    assert ours.loss.item() == pytest.approx(expected.loss.item(), rel=1e-6)
    config.get_text_config().final_logit_softcapping = None
    assert model(**batch, fused_lm_head=True).loss.item() != pytest.approx(
        expected.loss.item(), rel=1e-3
    )
