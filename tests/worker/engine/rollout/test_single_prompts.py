"""Prompts of unequal lengths give the same results in one batch, alone and in a model forward."""

from __future__ import annotations

import pytest

from tests.worker.engine.patches.models import make_model

from .rollouts import engine_of, greedy, make_prompts
from .scalings import ORIGINAL, SCALINGS, logprobs_by_prefix, make_scaled

NEW = 6


@pytest.mark.parametrize(
    "case", ["gqa, tied embeddings", "sliding window", "sliding and global", *SCALINGS]
)
def test_b1_eight_unequal_prompts_are_greedily_as_each_alone_and_as_a_forward(case: str) -> None:
    families = {
        "gqa, tied embeddings": "llama",
        "sliding window": "mistral",
        "sliding and global": "gemma3",
    }
    model = (make_model(families[case]) if case in families else make_scaled(case)).eval()
    beyond = ORIGINAL if case in SCALINGS else 0
    prompts = make_prompts(*(beyond + n for n in (1, 2, 5, 9, 14, 20, 26, 33)))
    together = greedy(engine_of(model), prompts, NEW)
    for prompt, one in zip(prompts, together, strict=True):
        (alone,) = greedy(engine_of(model), [prompt], NEW)
        assert one.token_ids == alone.token_ids
        expected = logprobs_by_prefix(model, prompt, one.token_ids)
        assert one.policy_logprobs == pytest.approx(expected, abs=1e-4)
