"""Groups of random tokens, and a model's log-probs and gradients for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.worker.engine.patches.models import VOCABULARY
from tunesmith_worker.trainer.methods.completion_scores import CompletionScores, score_completions
from tunesmith_worker.trainer.methods.groups import GroupLayout, GroupRow

Untyped = Any  # Any: transformers and PEFT are not typed

GROUPS = ((37, (150, 1, 60, 9)), (70, (5, 33, 128)), (12, (20,)))
"""Lengths of each prompt and of its completions. They are ragged, with one single-token completion
and one group of one completion."""


def make_rows(groups: Sequence[tuple[int, tuple[int, ...]]] = GROUPS) -> list[GroupRow]:
    """Make rows in random order, as TRL's trainer shuffles them."""
    draw = torch.Generator().manual_seed(3)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, VOCABULARY, (count,), generator=draw).tolist())

    rows = []
    for prompt, completions in groups:
        ids = tokens(prompt)
        rows += [GroupRow(ids, tokens(count)) for count in completions]
    return [rows[i] for i in torch.randperm(len(rows), generator=draw).tolist()]


def score(
    model: Untyped, rows: Sequence[GroupRow], layout: GroupLayout, **options: Untyped
) -> CompletionScores:
    return score_completions(model, rows, layout=layout, device=torch.device("cpu"), **options)


def trained(
    model: Untyped, rows: Sequence[GroupRow], layout: GroupLayout, **options: Untyped
) -> tuple[CompletionScores, dict[str, torch.Tensor]]:
    """Return the scores, and the gradient of each trainable tensor. Each token has a different loss
    weight, like an advantage."""
    model.zero_grad()
    scores = score(model, rows, layout, **options)
    weights = torch.randn(scores.log_probs.shape, generator=torch.Generator().manual_seed(0))
    loss = (scores.log_probs * weights).sum()
    if scores.entropy is not None and scores.entropy.requires_grad:
        loss = loss + (scores.entropy * weights.flip(0)).sum()
    loss.backward()
    return scores, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
