"""Requests, engines, and the plain forward pass that their results are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from tests.worker.engine.patches.models import VOCABULARY
from tunesmith_worker.engine.rollout import (
    Completion,
    NativeEngine,
    Request,
    RolloutEngine,
    RolloutPlan,
    SamplingParams,
)

Untyped = Any  # Any: transformers is not typed

GREEDY = SamplingParams(temperature=0.0)
LAYOUTS: tuple[Literal["merged", "in_place"], ...] = ("merged", "in_place")


def make_prompts(*lengths: int, seed: int = 0) -> list[tuple[int, ...]]:
    draw = torch.Generator().manual_seed(seed)
    return [tuple(torch.randint(3, VOCABULARY, (n,), generator=draw).tolist()) for n in lengths]


def engine_of(
    model: Untyped,
    weights: Literal["merged", "in_place"] = "merged",
    max_rows: int = 16,
    tokenizer: Untyped = None,
) -> NativeEngine:
    return NativeEngine(model.eval(), RolloutPlan(weights=weights, max_rows=max_rows), tokenizer)


def greedy(engine: RolloutEngine, prompts: Sequence[tuple[int, ...]], new: int) -> list[Completion]:
    return engine.generate(
        [Request(prompt_ids=one, max_tokens=new, seed=0, sampling=GREEDY) for one in prompts]
    )


def forward_logprobs(
    model: Untyped, prompt: Sequence[int], completion: Sequence[int], temperature: float = 1.0
) -> torch.Tensor:
    """Return the log-prob of each completion token, [T], from one forward pass over the whole
    sequence."""
    ids = torch.tensor([[*prompt, *completion]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0].float() / temperature
    scores: torch.Tensor = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return scores.gather(1, ids[0, len(prompt) :, None])[:, 0]


def assert_logprobs_equal_a_forward(
    model: Untyped,
    prompts: Sequence[tuple[int, ...]],
    completions: Sequence[Completion],
    temperature: float = 1.0,
) -> None:
    """Check that log-probs equal those of a forward pass. The error is relative to their RMS,
    because the log-prob of a very likely token is almost 0."""
    actual, expected = [], []
    for prompt, one in zip(prompts, completions, strict=True):
        actual.append(torch.tensor(one.policy_logprobs, dtype=torch.float64))
        expected.append(forward_logprobs(model, prompt, one.token_ids, temperature).double())
    error = torch.cat(actual) - torch.cat(expected)
    scale = torch.cat(expected).square().mean().sqrt()
    assert float(error.abs().max() / scale) <= 1e-5
