"""Cases in which the comparison of steps once stopped, or would have stopped, sound runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from tests.worker.engine.patches.models import VOCABULARY
from tunesmith_worker.trainer.selfcheck.shadow.advantages import check_advantages, check_rewards
from tunesmith_worker.trainer.selfcheck.shadow.update import decaying

Untyped = Any  # Any: transformers is not typed


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_decaying_parameters_are_those_of_transformers(kind: str) -> None:
    config = {
        "gpt2": transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=2),
        "llama": transformers.LlamaConfig(
            hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
        ),
    }[kind]
    model: Untyped = transformers.AutoModelForCausalLM.from_config(config)
    names = transformers.Trainer.get_decay_parameter_names(None, model)
    assert decaying(model) == set(names) & {name for name, _ in model.named_parameters()}


def test_completions_that_were_not_graded_again_show_no_shift() -> None:
    recorded = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    some = [0.0, 1.0, 0.0, *[None] * 5]
    (finding,) = check_rewards(recorded, some, 8)
    assert finding.level == "warn"
    assert list(check_rewards(recorded, [1.0, None, 1.0, *[None] * 5], 8)) == []
    (shifted,) = check_rewards(recorded, [*recorded[1:], recorded[0]], 8)
    assert (shifted.level, "rewards shifted" in shifted.message) == ("error", True)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_large_rewards_round_in_fp32(scale: str) -> None:
    plan: Any = SimpleNamespace(num_generations=4, scale_rewards=scale)
    rewards = [20_000.1, 20_000.9, 20_001.3, 20_000.4, 1.0, 2.0, 3.0, 5.0]
    single = torch.tensor(rewards).view(2, 4)
    divisor: Any = single.std(1, keepdim=True) if scale == "group" else single.std()
    centred = single - single.mean(1, keepdim=True)
    run = centred if scale == "none" else centred / (divisor + 1e-4)
    assert list(check_advantages(rewards, run.flatten().tolist(), plan)) == []
    if scale != "batch":  # a batch with such a spread leaves advantages of 1e-5
        (finding,) = check_advantages(rewards, (-run).flatten().tolist(), plan)
        assert finding.level == "error"
