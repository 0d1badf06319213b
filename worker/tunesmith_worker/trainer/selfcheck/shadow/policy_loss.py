"""Loss of a reinforcement step in plain torch, for the first update on fresh completions.

Before the first update, the trained policy is the policy that sampled the completions, so all
probability ratios are 1, and no token is clipped. Sources: GRPO (https://arxiv.org/abs/2402.03300),
DAPO (https://arxiv.org/abs/2503.14476), `dr_grpo` (https://arxiv.org/abs/2503.20783), CISPO
(https://arxiv.org/abs/2506.13585).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tunesmith_worker.trainer.auto.resolve_grpo import GRPOPlan

LOSSES = ("grpo", "bnpo", "dapo", "dr_grpo", "cispo")


def why_no_policy_loss(plan: GRPOPlan) -> str:
    """Return the reason why plain torch does not compute the recipe's loss; an empty text if plain
    torch computes the loss."""
    if plan.loss_type not in LOSSES:
        return f"recipe.grpo.loss_type is '{plan.loss_type}'"
    if plan.top_entropy_quantile < 1.0:
        return "recipe.grpo.top_entropy_quantile is below 1"
    if plan.delta is not None and plan.delta < 1.0:
        return "recipe.grpo.delta is below 1"
    return ""


@dataclass(frozen=True, kw_only=True)
class PolicyLoss:
    plan: GRPOPlan
    advantages: Sequence[float]
    """One advantage for each completion of the step."""
    tokens: Sequence[int]
    """Number of trained tokens of each completion; 0 for a masked completion."""
    reference: dict[int, torch.Tensor]
    """Log-probs [tokens] of the reference model for each completion; empty if beta is 0."""

    def __call__(self, row: int, log_probs: torch.Tensor) -> torch.Tensor:
        """Return the part of the loss that comes from the completion `row`. `log_probs`: fp32
        [tokens], with gradient."""
        plan = self.plan
        ratio = (log_probs - log_probs.detach()).exp()
        if plan.importance_sampling_level == "sequence":
            ratio = (log_probs - log_probs.detach()).mean().exp().expand_as(log_probs)
        if plan.loss_type == "cispo":
            most = plan.epsilon_high if plan.epsilon_high is not None else plan.epsilon
            losses = -self.advantages[row] * min(1.0, most) * log_probs
        else:
            losses = -self.advantages[row] * ratio
        if plan.beta:
            apart = self.reference[row].to(log_probs.device) - log_probs
            losses = losses + plan.beta * (apart.exp() - apart - 1) * ratio
        return losses.sum() / self._divisor(row)

    def _divisor(self, row: int) -> float:
        if self.plan.loss_type == "grpo":
            return float(self.tokens[row] * len(self.tokens))
        if self.plan.loss_type == "dr_grpo":
            return float(self.plan.max_completion_length * len(self.tokens))
        return float(sum(self.tokens))
