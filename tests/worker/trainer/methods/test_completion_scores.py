"""A prompt that goes through the model once for its group: the numbers and gradients of rows that
each have their own, and TRL's."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
import trl
from trl.trainer.utils import add_fused_lm_head

from tests.worker.engine.patches.models import (
    COMMON,
    FAMILIES,
    assert_same_gradients,
    equal_bits,
    make_model,
    make_tuned,
    model_of,
    relative_rms,
    scored_by_trl,
    with_lora,
)
from tunesmith_worker.engine.memory.estimate import Mode
from tunesmith_worker.engine.memory.recompute import LayerModes
from tunesmith_worker.engine.patches import patch
from tunesmith_worker.trainer.methods.groups import GroupRow

from .group_rows import make_rows, score, trained

Untyped = Any  # Any: transformers and TRL are not typed

every_family = pytest.mark.parametrize("family", FAMILIES)


@every_family
@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_shared_prompts_train_as_plain_rows(family: str, tuning: str) -> None:
    """Windows shorter than the prompts, soft caps, and gradients through the prompts' keys."""
    model, rows = make_tuned(family, tuning), make_rows()
    patch(model)
    plain, expected = trained(model, rows, "plain", temperature=0.7, entropy="grad")
    shared, found = trained(model, rows, "shared", temperature=0.7, entropy="grad")
    assert (plain.layout, shared.layout) == ("plain", "shared")
    assert shared.tokens < plain.tokens
    for one, other in ((shared.log_probs, plain.log_probs), (shared.entropy, plain.entropy)):
        assert one is not None
        assert other is not None
        assert relative_rms(one.detach(), other.detach()) <= 1e-6
    assert_same_gradients(found, expected)


def by_trl(model: Untyped, rows: list[GroupRow]) -> tuple[torch.Tensor, torch.Tensor]:
    """Stock TRL on its own batch: prompts padded on the left, completions on the right."""
    longest = max(len(row.prompt_ids) for row in rows)
    width = max(len(row.completion_ids) for row in rows)
    ids = torch.zeros(len(rows), longest + width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, ids_of_row, mask_of_row in zip(rows, ids, mask, strict=True):
        tokens = torch.tensor(row.prompt_ids + row.completion_ids)
        first = longest - len(row.prompt_ids)
        ids_of_row[first : first + len(tokens)] = tokens
        mask_of_row[first : first + len(tokens)] = 1
    trainer = SimpleNamespace(accelerator=SimpleNamespace(autocast=nullcontext))
    method: Untyped = trl.GRPOTrainer._get_per_token_logps_and_entropies
    scored = method.__wrapped__(trainer, model, ids, mask, width, compute_entropy=True)
    return scored[0], scored[1]


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("family", ["llama", "gemma2", "granite", "qwen2-sliding", "vaultgemma"])
def test_the_numbers_are_those_of_stock_trl(family: str, temperature: float) -> None:
    """Temperature after a soft cap and a model's own scale."""
    model, rows = with_lora(make_model(family)), make_rows()
    causal = model.get_base_model()
    add_fused_lm_head(causal, temperature=temperature, outputs=("log_probs", "entropy"))
    expected = by_trl(model, rows)
    patch(model)
    for layout in ("shared", "plain"):
        found = score(model, rows, layout, temperature=temperature, entropy=True)
        torch.testing.assert_close(found.log_probs, expected[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.entropy, expected[1], rtol=1e-5, atol=1e-5)


@every_family
def test_a_completion_is_bit_for_bit_untouched_by_its_siblings(family: str) -> None:
    model, rows = make_tuned(family, "lora"), make_rows()
    patch(model)
    changed = max(range(len(rows)), key=lambda i: len(rows[i].completion_ids))
    others = [i for i in range(len(rows)) if i != changed]
    completion = tuple(3 + (token + 50) % 100 for token in rows[changed].completion_ids)
    perturbed = [*rows]
    perturbed[changed] = replace(rows[changed], completion_ids=completion)
    before, after = (score(model, one, "shared").log_probs for one in (rows, perturbed))
    assert torch.equal(before[others], after[others])
    assert not torch.equal(before[changed], after[changed])


@pytest.mark.parametrize("layout", ["shared", "plain"])
def test_micro_batches_are_one_batch(layout: Any) -> None:  # Any: a layout's name
    """Groups are split over several, their prompts repeated."""
    model, rows = make_tuned("gemma2", "lora"), make_rows()
    patch(model)
    whole, expected = trained(model, rows, layout)
    parts, found = trained(model, rows, layout, max_tokens=150)
    assert (parts.tokens > whole.tokens) == (layout == "shared")
    assert relative_rms(parts.log_probs.detach(), whole.log_probs.detach()) <= 1e-6
    assert_same_gradients(found, expected)


@every_family
def test_layers_that_recompute_give_the_bits_of_keeping_all(family: str) -> None:
    """Their inputs on the host in every second family."""
    mode: Mode = "offload" if list(FAMILIES).index(family) % 2 else "recompute"
    model, rows = make_tuned(family, "lora", lora_dropout=0.2).train(), make_rows()
    patch(model)
    torch.manual_seed(5)
    _, expected = trained(model, rows, "shared")
    modes = LayerModes(model, min_offloaded_tokens=1)
    modes.set([mode] * len(modes.layers))
    torch.manual_seed(5)
    _, found = trained(model, rows, "shared")
    assert equal_bits(found, expected)
    assert modes.deviations() == []
    assert [counts.recomputes for counts in modes.counts] == [1] * len(modes.layers)
    assert [counts.offloads for counts in modes.counts] == [mode == "offload"] * len(modes.layers)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_stock_attention_gets_padded_rows_and_the_same_numbers(temperature: float) -> None:
    """Experts are of no known family; and a model whose attention nobody has asked for."""
    config = transformers.MixtralConfig(
        **COMMON, num_local_experts=4, num_experts_per_tok=2, sliding_window=None
    )
    rows = make_rows()
    for model in (scored_by_trl(with_lora(model_of(config))), make_tuned("llama", "lora")):
        patch(model, {"loss"})
        reference = score(model, rows[:1], "shared", temperature=temperature)
        found, gradients = trained(model, rows, "shared", temperature=temperature)
        assert (found.layout, reference.layout) == ("padded", "padded")
        width = reference.log_probs.shape[1]
        torch.testing.assert_close(found.log_probs[:1, :width], reference.log_probs)
        _, in_parts = trained(model, rows, "plain", temperature=temperature, max_tokens=400)
        assert_same_gradients(in_parts, gradients)


def test_padded_rows_train_as_shared_prompts() -> None:
    model, rows = make_tuned("gemma2", "full"), make_rows()
    patched = patch(model)
    shared, expected = trained(model, rows, "shared", temperature=0.7)
    patched.undo()
    patch(model, {"loss"})
    padded, found = trained(model, rows, "shared", temperature=0.7)
    assert padded.tokens > shared.tokens
    assert relative_rms(padded.log_probs.detach(), shared.log_probs.detach()) <= 1e-6
    assert_same_gradients(found, expected)


def test_what_is_not_scored_is_zero_and_is_not_computed() -> None:
    model, rows = make_tuned("llama", "lora"), make_rows()
    patch(model)
    everything = score(model, rows, "shared", entropy=True)
    assert everything.entropy is not None
    fewer = [
        replace(rows[0], completion_ids=()),
        replace(rows[1], skip=True),
        *rows[2:],
    ]
    found = score(model, fewer, "shared", entropy=True)
    assert found.entropy is not None
    assert found.tokens < everything.tokens
    assert not found.log_probs[:2].any()
    assert not found.entropy[:2].any()
    width = found.log_probs.shape[1]
    for one, other in (
        (found.log_probs, everything.log_probs),
        (found.entropy, everything.entropy),
    ):
        torch.testing.assert_close(one[2:], other[2:, :width])
    for row, line in zip(rows[2:], found.log_probs[2:], strict=True):
        assert bool((line[: len(row.completion_ids)] < 0).all())
        assert not line[len(row.completion_ids) :].any()


def test_rows_of_which_none_is_scored_are_a_loss_of_zero() -> None:
    model = make_tuned("llama", "lora")
    patch(model)
    rows = [replace(row, skip=True) for row in make_rows()]
    scores = score(model, rows, "shared", entropy=True)
    assert scores.log_probs.shape == (8, 150)
    assert not scores.log_probs.any()
    assert scores.tokens == 0
    scores.log_probs.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())
    assert score(model, [], "shared").log_probs.shape == (0, 0)


def test_a_model_without_our_head_is_refused() -> None:
    model = make_tuned("llama", "lora")
    with pytest.raises(ValueError, match="head of LlamaForCausalLM is not patched"):
        score(model, make_rows(), "shared")
    patched = patch(model)
    score(model, make_rows(), "shared")
    patched.undo()
    with pytest.raises(ValueError, match="is not patched"):
        score(model, make_rows(), "shared")
