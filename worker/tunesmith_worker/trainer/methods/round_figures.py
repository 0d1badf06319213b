"""What the run report wants to know of a round of completions, once they are graded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from tunesmith_worker.engine.rollout import Completion, FinishReason, RolloutFigures
from tunesmith_worker.trainer.report.rollouts import RewardCounts, RoundFigures
from tunesmith_worker.trainer.rewards import Graded

from .groups import GroupLayout, RowOfGroup, sizes_of


def leveled(
    graded: Sequence[Graded], advantages: torch.Tensor, num_generations: int
) -> RewardCounts:
    """Of groups whose rewards are all equal, or that have none, the advantages [completions] become
    exactly 0, in place: a mean of equal rewards is rounded, and what is left of them would be
    divided by nearly nothing."""
    groups = equal = 0
    for start in range(0, len(graded), num_generations):
        places = slice(start, start + num_generations)
        rewards = {one.rewards for one in graded[places] if one.is_graded}
        groups += len(rewards) > 0
        equal += len(rewards) == 1
        if len(rewards) <= 1:
            advantages[places] = 0.0
    ungraded = sum(not one.is_graded for one in graded)
    return RewardCounts(groups=groups, equal_groups=equal, ungraded=ungraded)


def round_figures(
    rows: Sequence[RowOfGroup],
    completions: Sequence[Completion],
    *,
    rewards: RewardCounts,
    num_iterations: int,
    drawing: RolloutFigures,
    weights: Literal["merged", "in_place"],
    layout: GroupLayout,
) -> RoundFigures:
    """`rows` and `completions` side by side, a group's together; `layout`: what training lays them
    out in; `drawing`: the engine's."""
    lengths = [len(one.token_ids) for one in completions]
    sizes = sizes_of(rows)
    return RoundFigures(
        num_iterations=num_iterations,
        completions=len(completions),
        generated_tokens=sum(lengths),
        longest=max(lengths, default=0),
        truncated=sum(one.finish_reason is FinishReason.LENGTH for one in completions),
        rewards=rewards,
        decode_steps=drawing.decode_steps,
        graph_steps=drawing.graph_steps,
        weights=weights,
        layout=layout,
        trained_slots=sum(one.tokens(layout) for one in sizes),
        plain_slots=sum(one.tokens("plain") for one in sizes),
    )
