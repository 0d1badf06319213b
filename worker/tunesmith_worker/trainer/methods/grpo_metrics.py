"""What a reinforcement step measures beside its loss, and what each figure is called."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from tunesmith_worker.engine.rollout import Completion, FinishReason, RolloutFigures
from tunesmith_worker.trainer.report.rollouts import RewardCounts, RoundFigures
from tunesmith_worker.trainer.rewards import Graded

from .groups import GroupLayout, RowOfGroup, sizes_of

Inputs = dict[str, Any]  # Any: tensors as TRL names them

NAMES = {
    "reward": "reward",
    "reward_std": "reward_std",
    "frac_reward_zero_std": "frac_reward_zero_std",
    "ungraded_share": "ungraded_share",
    "kl": "kl",
    "entropy": "entropy",
    "completions/mean_length": "completion_length",
    "completions/max_length": "completion_length_max",
    "completions/clipped_ratio": "truncated_share",
    "clip_ratio/region_mean": "clip_ratio",
    "cispo_clip_ratio": "clip_ratio",
    "rollout_gap": "rollout_gap",
}
"""TRL's name -> ours."""
_SCORES, _LOGGED = "scores/", "logged/"


def renamed(metrics: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """What was gathered since it was last logged, under our names; the rest is left out. Of several
    graders, each one's scores by its name, and what reward functions log: under names that none of
    ours begins with, whatever they are called."""
    found = {NAMES[name]: list(values) for name, values in metrics.items() if name in NAMES}
    scores = [name for name in metrics if name.startswith(_SCORES)]
    if len(scores) > 1:
        found |= {f"score_{one.removeprefix(_SCORES)}": list(metrics[one]) for one in scores}
    logged = [name for name in metrics if name.startswith(_LOGGED)]
    return found | {f"logged_{one.removeprefix(_LOGGED)}": list(metrics[one]) for one in logged}


@dataclass
class StepFigures:
    """Of one optimiser step, gathered part by part."""

    _gap: list[torch.Tensor] = field(default_factory=list)
    """Sum of |log-prob when drawn - in training|, and of tokens, of each part."""
    _log_probs: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def scored(
        self,
        rows: Sequence[RowOfGroup],
        log_probs: torch.Tensor,
        entropy: torch.Tensor,
        inputs: Inputs,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a part's completions, [rows, C]. Rows that were left out get a ratio of 1 and the
        others' mean entropy, so that they change neither the loss nor a mean."""
        mask = inputs["completion_mask"].to(log_probs.dtype)
        out = torch.tensor([row.left_out for row in rows], device=log_probs.device)[:, None]
        computed = mask * ~out
        tokens = computed.sum()
        if any(row.left_out for row in rows):
            as_drawn = inputs.get("old_per_token_logps", torch.zeros_like(log_probs))
            log_probs = torch.where(out, as_drawn, log_probs)
            # NaN, which is never told, where nothing was computed.
            typical = (entropy.detach() * computed).sum() / tokens
            entropy = torch.where(out, typical, entropy)
        found = log_probs.detach()
        drawn = inputs["sampling_per_token_logps"]
        self._gap.append(torch.stack([((found - drawn).abs() * computed).sum(), tokens]))
        self._log_probs.append((inputs["index"], found))
        return log_probs, entropy

    @property
    def gap(self) -> float:
        """Mean over tokens; NaN where nothing was computed. Waits for the device."""
        total, tokens = torch.stack(self._gap).sum(0).tolist() if self._gap else (0.0, 0.0)
        return total / tokens if tokens else math.nan

    def log_probs(self) -> torch.Tensor:
        """Of all the step's completions, in the batch's order."""
        index = torch.cat([one for one, _ in self._log_probs])
        found = torch.cat([one for _, one in self._log_probs])
        return torch.empty_like(found).index_copy_(0, index, found)


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
