"""Every family, adapter on: greedy tokens as from `generate`, log-probs as from a forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.worker.engine.patches.models import (
    FAMILIES,
    make_model,
    packed_batch,
    run_step,
    scored_by_trl,
    with_lora,
)
from tunesmith_worker.engine.patches import patch
from tunesmith_worker.engine.rollout.architecture import read_architecture
from tunesmith_worker.engine.rollout.weights import norm_function

from .rollouts import LAYOUTS, assert_logprobs_equal_a_forward, engine_of, greedy, make_prompts

Untyped = Any  # Any: transformers is not typed

PROMPTS = make_prompts(5, 17, 1, 30)
NEW = 14


def _generated(model: Untyped, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    """By transformers, one batch padded on the left."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(one)) + list(one) for one in prompts])
    mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
    with torch.no_grad():
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=None,
        )
    return [row.tolist() for row in out[:, longest:]]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_and_logprobs_are_the_models_own(family: str) -> None:
    """Unequal prompts in one batch of three rows, so that the last one joins late."""
    model = with_lora(make_model(family))
    expected = _generated(model.eval(), PROMPTS)
    for weights in LAYOUTS:
        completions = greedy(engine_of(model, weights, max_rows=3), PROMPTS, NEW)
        assert [one.token_ids for one in completions] == expected
        assert_logprobs_equal_a_forward(model, PROMPTS, completions)


@pytest.mark.parametrize("family", ["llama-bias", "gemma3", "phi3"])
def test_full_tuning_rolls_out_the_weights_themselves(family: str) -> None:
    model = make_model(family)
    for weights in LAYOUTS:
        completions = greedy(engine_of(model, weights), PROMPTS, NEW)
        assert_logprobs_equal_a_forward(model, PROMPTS, completions)


@pytest.mark.parametrize("weights", LAYOUTS)
def test_a_patched_model_that_has_trained_a_step_rolls_out_its_new_weights(weights: Any) -> None:
    model = scored_by_trl(with_lora(make_model("qwen3")))
    patched = patch(model)
    engine = engine_of(model, weights)
    before = greedy(engine, PROMPTS, NEW)
    model.train()
    run_step(model, packed_batch())
    torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5).step()
    after = greedy(engine, PROMPTS, NEW)
    assert [one.policy_logprobs for one in after] != [one.policy_logprobs for one in before]
    patched.undo()
    assert_logprobs_equal_a_forward(model.eval(), PROMPTS, after)


@pytest.mark.parametrize("family", ["llama", "gemma2", "olmo2"])
def test_norms_round_as_the_model_does(family: str) -> None:
    """In bf16: all but those few whose mean square differs in its last bit."""
    model = make_model(family, dtype=torch.bfloat16)
    spec = read_architecture(model).norm
    with torch.no_grad():
        spec.module.weight.copy_(torch.linspace(-1.5, 1.5, len(spec.module.weight)))
    x = 3 * torch.randn(64, len(spec.module.weight), generator=torch.Generator().manual_seed(4))
    x = x.bfloat16()
    with torch.no_grad():
        different = norm_function(spec)(x) != model.base_model.norm(x)
    assert float(different.float().mean()) < 0.005
