"""Metrics of a reinforcement step: their names, the step's log-probs, and values for the run
report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from tunesmith_worker.engine.rollout import (
    Completion,
    EngineName,
    FinishReason,
    RolloutFigures,
)
from tunesmith_worker.trainer.report.rollouts import RewardCounts, RoundFigures
from tunesmith_worker.trainer.rewards import Graded

from .groups import GroupLayout, GroupRow, sizes_of

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
    "importance_ratio": "importance_ratio",
    "importance_ratio_max": "importance_ratio_max",
    "importance_masked_share": "importance_masked_share",
}
"""Our names of metrics; the keys are TRL's names."""
_SCORES, _LOGGED = "scores/", "logged/"


def rename_metrics(metrics: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return the metrics since the last log under the names in NAMES; drop metrics that NAMES
    lacks.

    With several graders, each grader's scores are added as `score_NAME`. Values that reward
    functions log are added as `logged_NAME`."""
    result = {NAMES[name]: list(values) for name, values in metrics.items() if name in NAMES}
    scores = [name for name in metrics if name.startswith(_SCORES)]
    if len(scores) > 1:
        result |= {f"score_{name.removeprefix(_SCORES)}": list(metrics[name]) for name in scores}
    logged = [name for name in metrics if name.startswith(_LOGGED)]
    return result | {f"logged_{name.removeprefix(_LOGGED)}": list(metrics[name]) for name in logged}


@dataclass
class StepScores:
    """Log-probabilities of one optimiser step, collected from its micro-batches."""

    _gap: list[torch.Tensor] = field(default_factory=list)
    """For each micro-batch: the sum of |sampling log-prob - training log-prob|, and the number of
    tokens."""
    _log_probs: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def add(
        self,
        rows: Sequence[GroupRow],
        log_probs: torch.Tensor,
        entropy: torch.Tensor,
        inputs: Inputs,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Record a micro-batch's log-probs and entropies, [rows, C], and return them for the loss.

        Skipped rows get a policy ratio of 1 and the mean entropy of the other rows, so that skipped
        rows change neither the loss nor the mean entropy.
        """
        mask = inputs["completion_mask"].to(log_probs.dtype)
        skipped = torch.tensor([row.skip for row in rows], device=log_probs.device)[:, None]
        computed = mask * ~skipped
        tokens = computed.sum()
        if any(row.skip for row in rows):
            old_log_probs = inputs.get("old_per_token_logps", torch.zeros_like(log_probs))
            log_probs = torch.where(skipped, old_log_probs, log_probs)
            # NaN if no row was computed; this NaN is never reported.
            mean_entropy = (entropy.detach() * computed).sum() / tokens
            entropy = torch.where(skipped, mean_entropy, entropy)
        values = log_probs.detach()
        sampled = inputs["sampling_per_token_logps"]
        self._gap.append(torch.stack([((values - sampled).abs() * computed).sum(), tokens]))
        self._log_probs.append((inputs["index"], values))
        return log_probs, entropy

    @property
    def gap(self) -> float:
        """Mean difference between sampling and training log-probs; NaN if no row was computed.

        Reading this property waits for the device."""
        total, tokens = torch.stack(self._gap).sum(0).tolist() if self._gap else (0.0, 0.0)
        return total / tokens if tokens else math.nan

    def log_probs(self) -> torch.Tensor:
        """Return the log-probs of the step's completions in the batch's order."""
        index = torch.cat([index for index, _ in self._log_probs])
        values = torch.cat([values for _, values in self._log_probs])
        return torch.empty_like(values).index_copy_(0, index, values)


def zero_equal_groups(
    graded: Sequence[Graded], advantages: torch.Tensor, num_generations: int
) -> RewardCounts:
    """Set the advantages [completions] of groups with equal or no rewards to exactly 0, in place.

    With equal rewards, the standard deviation is nearly 0, and division by nearly 0 would turn
    rounding errors into large advantages."""
    groups = equal = 0
    for start in range(0, len(graded), num_generations):
        places = slice(start, start + num_generations)
        rewards = {item.rewards for item in graded[places] if item.is_graded}
        groups += len(rewards) > 0
        equal += len(rewards) == 1
        if len(rewards) <= 1:
            advantages[places] = 0.0
    ungraded = sum(not item.is_graded for item in graded)
    return RewardCounts(groups=groups, equal_groups=equal, ungraded=ungraded)


def round_figures(
    rows: Sequence[GroupRow],
    completions: Sequence[Completion],
    *,
    rewards: RewardCounts,
    num_iterations: int,
    engine: RolloutFigures,
    engine_name: EngineName,
    weights: Literal["merged", "in_place"],
    layout: GroupLayout,
) -> RoundFigures:
    """Return statistics of a step's completions for the run report.

    `rows` and `completions` are in the same order, with groups adjacent. `engine`: measurements of
    the rollout engine. `layout`: layout of the training forward pass.
    """
    lengths = [len(completion.token_ids) for completion in completions]
    sizes = sizes_of(rows)
    return RoundFigures(
        num_iterations=num_iterations,
        completions=len(completions),
        generated_tokens=sum(lengths),
        longest=max(lengths, default=0),
        truncated=sum(c.finish_reason is FinishReason.LENGTH for c in completions),
        rewards=rewards,
        decode_steps=engine.decode_steps,
        graph_steps=engine.graph_steps,
        engine=engine_name,
        weights=weights,
        layout=layout,
        trained_slots=sum(size.tokens(layout) for size in sizes),
        plain_slots=sum(size.tokens("plain") for size in sizes),
    )
