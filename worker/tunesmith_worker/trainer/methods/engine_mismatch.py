"""Importance sampling for completions of an engine whose log-probs differ from the trainer's.

The loss of a token or of a whole completion is multiplied by the ratio p_trainer / p_engine. The
recipe's modes are the modes of TRL's setting `vllm_importance_sampling_mode`. A truncating mode
limits the ratio to CLIP_MAX. A masking mode sets a ratio above CLIP_MAX to 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from tunesmith_schema import ErrorCode
from tunesmith_schema.grpo import ImportanceSampling, LossType
from tunesmith_worker.engine.rollout import EngineName
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.plan import Choices

from .groups import GroupRow

Inputs = dict[str, Any]  # Any: tensors as TRL names them
Mode = Literal["sequence_mask", "sequence_truncate", "token_mask", "token_truncate"]
RATIO = "importance_sampling_ratio"
"""Key of the ratios in the inputs of TRL's loss."""
CLIP_MAX = 3.0
"""Maximum importance-sampling ratio, as in TRL; the ratio has no minimum."""


def resolve_mode(
    setting: ImportanceSampling, engine: EngineName, loss_type: LossType, choices: Choices
) -> Mode | None:
    """Return the mode of importance sampling; None for no importance sampling.

    `setting`: `recipe.rollout.importance_sampling`. Raises RunError if the loss does not allow the
    mode."""
    value: ImportanceSampling = "off"
    reason = f"the engine {engine} computes with the weights and the precision of the trainer"
    if engine == "vllm":
        value = "token_truncate" if loss_type == "vespo" else "sequence_mask"
        reason = "vLLM's log-probs differ from the trainer's by rounding"
    resolved = choices.resolve("importance_sampling", setting, value, reason)
    if resolved == "off" or resolved == "auto":
        return None
    if loss_type == "vespo" and resolved.startswith("sequence"):
        raise RunError(
            ErrorCode.RECIPE_INVALID,
            f"recipe.rollout.importance_sampling={resolved!r} does not fit loss_type='vespo', "
            "which weights whole completions itself.",
            hint="Set recipe.rollout.importance_sampling to 'auto', 'token_truncate' or "
            "'token_mask'.",
            param="recipe.rollout.importance_sampling",
        )
    return resolved


class MismatchCorrection:
    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self._ratios: list[torch.Tensor] = []
        """Ratios before truncation or masking, one tensor for each micro-batch of the step."""

    def start_step(self) -> None:
        self._ratios.clear()

    def ratio(
        self, rows: Sequence[GroupRow], log_probs: torch.Tensor, inputs: Inputs
    ) -> torch.Tensor:
        """Return TRL's ratio of each token [B, C], or of each completion [B, 1].

        `log_probs`: the trainer's log-probs [B, C]. After the first update on the completions, the
        ratio uses `old_per_token_logps` of `inputs`, the trainer's log-probs before the first
        update. Skipped rows have the ratio 1.
        """
        old = inputs.get("old_per_token_logps", log_probs.detach())
        skipped = torch.tensor([row.skip for row in rows], device=old.device)[:, None]
        mask = inputs["completion_mask"].bool() & ~skipped
        # Some engines cannot score a token and return NaN.
        difference = (old - inputs["sampling_per_token_logps"]).nan_to_num(nan=0.0) * mask
        if self.mode.startswith("sequence"):
            difference = difference.sum(-1, keepdim=True)
            mask = mask.any(-1, keepdim=True)
        ratio: torch.Tensor = difference.exp()
        self._ratios.append(ratio[mask])
        if self.mode.endswith("truncate"):
            return ratio.clamp(max=CLIP_MAX)
        return ratio.masked_fill(ratio > CLIP_MAX, 0.0)

    def metrics(self) -> dict[str, float]:
        """Return the step's mean ratio, its maximum ratio and the share of ratios above CLIP_MAX;
        {} if no row was computed."""
        ratios = torch.cat(self._ratios) if self._ratios else torch.empty(0)
        if not len(ratios):
            return {}
        mean, largest, masked = torch.stack(
            [ratios.mean(), ratios.max(), (ratios > CLIP_MAX).float().mean()]
        ).tolist()
        return {
            "importance_ratio": mean,
            "importance_ratio_max": largest,
            "importance_masked_share": masked,
        }
