"""Why a reinforcement step's gradient is not finite: the completions that make it so."""

from __future__ import annotations

from typing import Any

import torch

from tunesmith_schema import ErrorCode
from tunesmith_worker.rundir.errors import RunError

from .nan_guard import TakenStep
from .step_parts import ROWS

Untyped = Any  # Any: transformers and TRL are not typed
_GUARDED = "The update was not applied: the weights are those before this step."


def why_not_finite(trainer: Untyped, step: TakenStep) -> RunError:
    """What to tell the user; the model's gradients are gone then."""
    trainer.model.zero_grad(set_to_none=True)
    weights = [name for name, one in trainer.model.named_parameters() if not _finite(one)]
    rows = step.rows[ROWS]
    with torch.no_grad():
        bad = [
            number
            for number, row in enumerate(rows)
            if row.scored and not _finite(trainer.scores(trainer.model, [row]).log_probs)
        ]
    if weights:
        cause = f"{weights[0]} is not finite"
    elif bad:
        cause = f"the log-probabilities of completion {bad[0]} of {len(rows)} are not finite"
    else:
        largest = float(step.rows["advantages"].abs().max())
        cause = f"every log-probability is finite; the largest advantage is {largest:.3g}"
    return RunError(
        ErrorCode.GRADIENT_NONFINITE,
        f"Step {step.number}: the gradient is not finite: {cause}. {_GUARDED}",
        hint="Lower recipe.learning_rate, by a factor of 10 to begin with; with recipe.grpo.beta "
        "above 0, lower it as well.",
        param="recipe.learning_rate",
    )


def _finite(tensor: torch.Tensor) -> bool:
    return bool(tensor.isfinite().all())
