"""Gap between sampling and training log-probabilities, for models with dropout or other noise.

Dropout and router jitter change the log-probabilities of each training forward pass. The rollout
engine generates without noise, so the gap is also measured without noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .completion_scores import CompletionScores
from .groups import GroupRow

Untyped = Any  # Any: transformers is not typed
Score = Callable[[list[GroupRow]], CompletionScores]

GAP_TOKENS = 4096
"""Maximum number of tokens in the rows on which the gap between sampling and training log-probs is
measured. A single row may have more tokens."""
_NOISE = ("drop", "jitter")
"""Substrings in the names of model settings that add noise in training."""


def differs_in_training(model: Untyped) -> bool:
    """Return True if training adds random noise, such as dropout or router jitter."""
    if any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in model.modules()):
        return True
    config = model.config.get_text_config()
    return any(
        isinstance(value, float) and value > 0 and any(part in name for part in _NOISE)
        for name, value in vars(config).items()
    )


def gap_without_noise(
    model: Untyped,
    rows: Sequence[GroupRow],
    sampled: torch.Tensor,
    completion_mask: torch.Tensor,
    score: Score,
) -> float:
    """Return the mean |sampling log-prob - training log-prob| over a sample of a step's scored
    rows.

    `sampled`: sampling log-probs of all rows, [B, C]. `completion_mask`: mask of all rows, [B, C].
    `score`: function that runs the model's forward pass on rows. NaN if no row is scored. The
    measurement leaves the random state unchanged."""
    places = sample_rows(rows)
    if not places:
        return math.nan
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            scores = score([rows[place] for place in places]).log_probs
    finally:
        model.train(was_training)
    index = torch.tensor(places, device=sampled.device)
    width = scores.shape[1]
    mask = completion_mask[index, :width].to(scores.dtype)
    apart = (scores - sampled[index, :width]).abs() * mask
    return float(apart.sum() / mask.sum())


def sample_rows(rows: Sequence[GroupRow]) -> list[int]:
    """Return the indices of evenly spaced scored rows with at most GAP_TOKENS tokens in total, but
    at least one row."""
    scored = [place for place, row in enumerate(rows) if row.scored]
    tokens = sum(len(rows[place].prompt_ids) + len(rows[place].completion_ids) for place in scored)
    every = max(1, -(-tokens // GAP_TOKENS))
    chosen: list[int] = []
    used = 0
    for place in scored[::every]:
        used += len(rows[place].prompt_ids) + len(rows[place].completion_ids)
        if chosen and used > GAP_TOKENS:
            break
        chosen.append(place)
    return chosen
