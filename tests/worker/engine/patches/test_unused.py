"""Modules and parameters without an effect on text: found, and nothing else."""

from __future__ import annotations

import pytest
import torch
import transformers
from benchmarks.models.configs import small_config

from tunesmith_worker.engine.patches.unused import unused_modules, unused_parameters

from .models import Untyped, make_model


def small(model_type: str) -> Untyped:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(small_config(model_type, 384))


def test_a_vision_encoder_is_unused() -> None:
    model = small("gemma3")
    assert unused_modules(model) == ["model.vision_tower", "model.multi_modal_projector"]
    names = unused_parameters(model)
    assert names
    assert all(name.startswith(("model.vision_tower.", "model.multi_modal_")) for name in names)


def test_a_module_that_runs_without_an_effect_is_unused() -> None:
    assert unused_modules(small("big_bird")) == ["bert.pooler"]


def test_the_bias_of_a_router_gets_no_gradient() -> None:
    model = small("afmoe").requires_grad_(True)  # as a loaded model
    assert unused_modules(model) == []
    names = [f"model.layers.{layer}.mlp.expert_bias" for layer in (0, 1)]
    assert unused_parameters(model) == names
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("model_type", ["gpt2", "opt", "phimoe"])
def test_a_model_of_text_uses_all_its_modules(model_type: str) -> None:
    model = small(model_type)
    assert unused_modules(model) == []
    assert unused_parameters(model) == []


def test_a_family_with_our_kernels_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("llama")
    monkeypatch.setattr(type(model), "forward", lambda *_, **__: pytest.fail("it ran"))
    assert unused_modules(model) == []
    assert unused_parameters(model) == []
