"""Layers that keep, recompute or offload, one by one: the same gradients, and as many recomputes
as the plan says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tunesmith_worker.engine.memory.estimate import Mode
from tunesmith_worker.engine.memory.offload import InputOffload
from tunesmith_worker.engine.memory.recompute import LayerCounts, LayerModes
from tunesmith_worker.engine.patches import patch
from tunesmith_worker.engine.patches.trl_compat import RECOMPUTE

from .models import equal_bits, make_tuned, packed_batch, run_step

Untyped = Any  # Any: transformers is not typed


PLANS: list[Sequence[Mode]] = [
    ["recompute", "recompute", "recompute"],
    ["recompute", "keep", "keep"],
    ["offload", "recompute", "keep"],
    ["offload", "offload", "keep"],
    ["offload", "offload", "recompute"],
]


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "stock"])
@pytest.mark.parametrize(("tuning", "dropout"), [("lora", 0.0), ("lora", 0.3), ("full", 0.0)])
@pytest.mark.parametrize("modes", PLANS, ids="-".join)
def test_every_plan_gives_the_bits_of_keeping_all(
    modes: Sequence[Mode], tuning: str, dropout: float, ours: bool
) -> None:
    """Random numbers included: a recomputed layer draws the masks of its forward."""
    lora = {"lora_dropout": dropout} if tuning == "lora" else {}
    model, batch = make_tuned("qwen3", tuning, **lora), packed_batch()
    model.train()
    if ours:
        patch(model)
    torch.manual_seed(3)
    expected, after = run_step(model, batch), torch.get_rng_state()
    layers = LayerModes(model, min_offloaded_tokens=1)
    layers.set(modes)
    torch.manual_seed(3)
    found = run_step(model, batch)
    assert found[0].loss.item() == expected[0].loss.item()
    assert equal_bits(found[1], expected[1])
    assert torch.equal(torch.get_rng_state(), after)
    assert layers.deviations() == []
    for mode, counts in zip(modes, layers.counts, strict=True):
        assert counts == LayerCounts(
            mode=mode,
            forwards=int(mode != "keep"),
            recomputes=int(mode != "keep"),
            offloads=int(mode == "offload"),
        )


def test_a_second_plan_replaces_the_first_and_undo_leaves_the_model_as_it_was() -> None:
    model, batch = make_tuned("llama", "lora"), packed_batch()
    model.train()
    expected = run_step(model, batch)
    layers = LayerModes(model, min_offloaded_tokens=1)
    layers.set(PLANS[0])
    run_step(model, batch)
    layers.set(PLANS[1])
    run_step(model, batch)
    assert [counts.recomputes for counts in layers.counts] == [1, 0, 0]
    layers.undo()
    assert not any(layer.gradient_checkpointing for layer in layers.layers)
    assert equal_bits(run_step(model, batch)[1], expected[1])


def test_checkpointing_that_somebody_switches_behind_our_back_is_named() -> None:
    """As a trainer's arguments may: TrainingArguments turn it on for a whole model."""
    model = make_tuned("llama", "lora").train()
    layers = LayerModes(model, min_offloaded_tokens=1)
    layers.set(PLANS[1])
    getattr(model, f"{RECOMPUTE}_enable")()
    assert [text[:7] for text in layers.deviations()] == ["layer 1", "layer 2"]
    layers.set(PLANS[0])
    getattr(model, f"{RECOMPUTE}_disable")()
    assert len(layers.deviations()) == 3
    layers.set(PLANS[0])
    patch(model)
    layers.layers[0].forward = type(layers.layers[0]).forward.__get__(layers.layers[0])
    layers.counts[0].forwards += 1  # a forward that no backward followed
    assert "layer 0 recomputed 0 of 1 forward passes" in layers.deviations()


def test_evaluation_recomputes_nothing() -> None:
    model, batch = make_tuned("llama", "lora").eval(), packed_batch()
    layers = LayerModes(model, min_offloaded_tokens=1)
    layers.set(PLANS[3])
    with torch.no_grad():
        model(**batch)
    model.train()
    with torch.no_grad():
        model(**batch)
    assert [counts.forwards for counts in layers.counts] == [0, 0, 0]


def offloaded_step(offload: InputOffload, counts: LayerCounts, layers: int, tokens: int) -> Untyped:
    """Gradient of a chain of checkpoints, each with its input on the host."""
    from torch.utils.checkpoint import checkpoint

    device = "cuda" if torch.cuda.is_available() else "cpu"
    weight = torch.full((8, 8), 0.1, device=device).fill_diagonal_(0.9).requires_grad_()
    x = torch.arange(tokens * 8.0, device=device).reshape(1, tokens, 8) / (8 * tokens)
    for _ in range(layers):
        with offload.inputs(counts):
            x = checkpoint(lambda x: torch.tanh(x @ weight), x, use_reentrant=False)
    x.square().sum().backward()
    return weight.grad


def plain_step(layers: int, tokens: int) -> Untyped:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weight = torch.full((8, 8), 0.1, device=device).fill_diagonal_(0.9).requires_grad_()
    x = torch.arange(tokens * 8.0, device=device).reshape(1, tokens, 8) / (8 * tokens)
    for _ in range(layers):
        x = torch.tanh(x @ weight)
    x.square().sum().backward()
    return weight.grad


@pytest.mark.parametrize("layers", [2, 3, 17])
def test_offloaded_inputs_come_back_over_many_steps_of_varying_length(layers: int) -> None:
    offload, counts = InputOffload(4), LayerCounts("offload")
    for tokens in (4, 9, 5, 31):
        assert torch.equal(
            offloaded_step(offload, counts, layers, tokens), plain_step(layers, tokens)
        )
    assert counts.offloads == 4 * layers


def test_short_inputs_stay_on_the_device() -> None:
    offload, counts = InputOffload(10), LayerCounts("offload")
    assert torch.equal(offloaded_step(offload, counts, 3, 9), plain_step(3, 9))
    assert counts.offloads == 0


def test_a_forward_that_failed_leaves_nothing_for_the_next_backward() -> None:
    offload, counts = InputOffload(1), LayerCounts("offload")
    with offload.inputs(counts), torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        pass
    kept = [offloaded_step(offload, counts, 2, 5)]
    with pytest.raises(RuntimeError, match="planned"), offload.inputs(counts):
        raise RuntimeError("planned")
    kept.append(offloaded_step(offload, counts, 2, 5))
    assert torch.equal(*kept)


@pytest.mark.gpu
@pytest.mark.parametrize("layers", [2, 16, 64])
def test_no_buffer_is_overwritten_before_its_copy_is_done(layers: int) -> None:
    """Sleeps of random length on both streams."""
    offload, counts = InputOffload(1), LayerCounts("offload")
    expected = plain_step(layers, 4096)
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        for stream in (torch.cuda.current_stream(), offload._stream):
            if stream is not None:
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(int(torch.randint(1, 3_000_000, (), generator=draw)))
        assert torch.equal(offloaded_step(offload, counts, layers, 4096), expected)


@pytest.mark.gpu
def test_pinned_memory_does_not_grow_over_steps_of_varying_length() -> None:
    import psutil

    offload, counts = InputOffload(1), LayerCounts("offload")
    draw = torch.Generator().manual_seed(0)
    lengths = [int(torch.randint(1000, 8000, (), generator=draw)) for _ in range(300)]
    for tokens in [8000, *lengths[:20]]:
        offloaded_step(offload, counts, 8, tokens)
    before = psutil.Process().memory_info().rss
    for tokens in lengths:
        offloaded_step(offload, counts, 8, tokens)
    assert psutil.Process().memory_info().rss - before < 16 << 20
