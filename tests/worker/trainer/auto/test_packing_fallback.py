"""`packing: true` where rows cannot be kept apart: padded rows, and a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from transformers.models.llama import modeling_llama

from tests.worker.conftest import MakeRun
from tests.worker.engine.patches.models import COMMON
from tests.worker.runs import QUESTIONS, losses, read_events, read_result
from tests.worker.trainer.auto.test_memory_plan import layout_of
from tunesmith_worker.engine.patches.separate_rows import mixed_rows_reason, trial_rows
from tunesmith_worker.trainer.run import main

Untyped = Any  # Any: transformers is not typed
SMALL: dict[str, Any] = {"vocab_size": 131, "hidden_size": 48, "num_attention_heads": 4}
MODELS: dict[str, tuple[bool, Callable[[], Untyped]]] = {
    "llama": (True, lambda: transformers.LlamaConfig(**COMMON, attention_dropout=0.1)),
    "mixtral": (True, lambda: transformers.MixtralConfig(**COMMON, num_local_experts=4)),
    "gpt2": (
        True,
        lambda: transformers.GPT2Config(vocab_size=131, n_embd=48, n_layer=2, n_head=4),
    ),
    "bloom": (False, lambda: transformers.BloomConfig(**SMALL, n_layer=2)),
    "mamba": (
        False,
        lambda: transformers.MambaConfig(vocab_size=131, hidden_size=48, num_hidden_layers=2),
    ),
    "falcon": (False, lambda: transformers.FalconConfig(**SMALL, num_hidden_layers=2)),
    "lfm2": (
        False,
        lambda: transformers.Lfm2Config(
            **COMMON | {"num_hidden_layers": 2}, layer_types=["conv", "full_attention"]
        ),
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ids", [range(5, 60), [7]], ids=["many tokens", "one token"])
def test_the_trial_finds_models_that_mix_rows(name: str, ids: Any) -> None:
    apart, make_config = MODELS[name]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers', of missing kernels
        model = transformers.AutoModelForCausalLM.from_config(make_config())
        reason = mixed_rows_reason(model.train(), ids)
    assert (reason is None) is apart, reason
    assert model.training


def test_rows_that_mix_less_than_bf16_rounds_are_found() -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(MODELS["bloom"][1]())
    reason = mixed_rows_reason(model.to(torch.bfloat16), range(5, 60))
    assert reason is not None
    assert reason.endswith("(a row's logits depend on the previous row)")


def test_the_trial_uses_different_tokens_in_both_rows() -> None:
    assert [set(row) for row in trial_rows([5, 5, 6], 9)] == [{5}, {6}]
    assert [set(row) for row in trial_rows([8], 9)] == [{8}, {0}]


@pytest.mark.parametrize("self_check", [True, False])
def test_packing_falls_back_to_padded_rows_and_says_so(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, self_check: bool
) -> None:
    """A model that drops the positions of packed rows, as one with other positions does."""
    forward = modeling_llama.LlamaModel.forward

    def without_positions(model: Untyped, *given: Untyped, **named: Untyped) -> Untyped:
        named.pop("position_ids", None)
        return forward(model, *given, **named)

    monkeypatch.setattr(modeling_llama.LlamaModel, "forward", without_positions)
    recipe = {"max_steps": 3, "patches": "off", "self_check": self_check, "learning_rate": 1e-2}
    batch = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}
    packed = make_run(QUESTIONS, recipe=recipe | batch | {"packing": True}, name="packed")
    assert main(packed) == 0, read_result(packed).error
    warned = [event.message for event in read_events(packed) if event.level == "warn"]
    assert [text for text in warned if text.startswith("recipe.packing=true has no effect: ")]
    layout = layout_of(packed)
    assert layout.value == "padded"
    assert "does not separate packed rows" in layout.reason
    padded = make_run(QUESTIONS, recipe=recipe | batch | {"packing": False}, name="padded")
    assert main(padded) == 0, read_result(padded).error
    assert losses(packed) == losses(padded)


def test_stock_layers_that_keep_rows_apart_still_pack(make_run: MakeRun) -> None:
    run = make_run(QUESTIONS, recipe={"max_steps": 1, "patches": "off", "packing": True})
    assert main(run) == 0, read_result(run).error
    assert layout_of(run).value == "packing"
    assert not [event for event in read_events(run) if event.level == "warn"]
