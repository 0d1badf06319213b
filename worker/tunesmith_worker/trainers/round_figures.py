"""What the run report wants to know of a round of completions, once they are graded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ..report.rollouts import RoundFigures
from ..rollout import Completion, FinishReason, RolloutFigures
from .groups import GroupLayout, RowOfGroup, sizes_of


def round_figures(
    rows: Sequence[RowOfGroup],
    completions: Sequence[Completion],
    advantages: Sequence[float],
    is_graded: Sequence[bool],
    *,
    num_generations: int,
    num_iterations: int,
    drawing: RolloutFigures,
    weights: Literal["merged", "in_place"],
    layout: GroupLayout,
) -> RoundFigures:
    """`rows`, `completions`, `advantages` and `is_graded`, whether it has a reward, side by side, a
    group's together; `layout`: what training lays them out in; `drawing`: the engine's."""
    lengths = [len(one.token_ids) for one in completions]
    groups = [
        slice(first, first + num_generations)
        for first in range(0, len(advantages), num_generations)
    ]
    sizes = sizes_of(rows)
    return RoundFigures(
        num_iterations=num_iterations,
        completions=len(completions),
        generated_tokens=sum(lengths),
        longest=max(lengths, default=0),
        truncated=sum(one.finish_reason is FinishReason.LENGTH for one in completions),
        groups=sum(any(is_graded[group]) for group in groups),
        zero_std_groups=sum(
            any(is_graded[group]) and not any(advantages[group]) for group in groups
        ),
        ungraded=sum(not one for one in is_graded),
        decode_steps=drawing.decode_steps,
        graph_steps=drawing.graph_steps,
        weights=weights,
        layout=layout,
        trained_slots=sum(one.tokens(layout) for one in sizes),
        plain_slots=sum(one.tokens("plain") for one in sizes),
    )
