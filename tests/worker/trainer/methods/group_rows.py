"""Groups of random tokens, and what a model says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.worker.engine.patches.models import VOCABULARY
from tunesmith_worker.trainer.methods.completion_scores import CompletionScores, score_completions
from tunesmith_worker.trainer.methods.groups import GroupLayout, GroupRow

Untyped = Any  # Any: transformers and PEFT are not typed

GROUPS = ((37, (150, 1, 60, 9)), (70, (5, 33, 128)), (12, (20,)))
"""Tokens of each prompt and of its completions: ragged, one of a single token, a group of one."""


def make_rows(groups: Sequence[tuple[int, tuple[int, ...]]] = GROUPS) -> list[GroupRow]:
    """Shuffled, as TRL's trainer shuffles them."""
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
    """The scores, and each trainable tensor's gradient for weights that differ from token to token,
    as advantages do."""
    model.zero_grad()
    scores = score(model, rows, layout, **options)
    weights = torch.randn(scores.log_probs.shape, generator=torch.Generator().manual_seed(0))
    loss = (scores.log_probs * weights).sum()
    if scores.entropy is not None and scores.entropy.requires_grad:
        loss = loss + (scores.entropy * weights.flip(0)).sum()
    loss.backward()
    return scores, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
