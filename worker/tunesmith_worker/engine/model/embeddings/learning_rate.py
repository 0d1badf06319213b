"""The learning rate of the embedding, the head and token rows.

Adam moves every number by about the rate at each step, and a row that occurs rarely has few steps
to average over: LoRA's rate, ten times full tuning's, is too much for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import peft
import torch

from tunesmith_schema import Recipe
from tunesmith_worker.rundir.plan import Choices

from .matrices import Matrices

Untyped = Any  # Any: transformers and peft are not typed


def embedding_learning_rate(
    model: Untyped, recipe: Recipe, learning_rate: float, choices: Choices
) -> float | None:
    """None where there is no such parameter, or where it shares `learning_rate`."""
    given = recipe.embedding_learning_rate
    if not embedding_parameters(model) or (recipe.tuning == "full" and given == "auto"):
        return None
    return choices.resolve(
        "embedding_learning_rate", given, learning_rate / 10, "a tenth of learning_rate"
    )


def embedding_parameters(model: Untyped) -> list[torch.nn.Parameter]:
    """What trains in the embedding and the head, whole or as rows; each once."""
    causal = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    every = (p for one in Matrices.of(causal).named for p in one.module.parameters())
    return list({id(p): p for p in every if p.requires_grad}.values())


def set_learning_rate(
    optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter], rate: float
) -> None:
    """Move `parameters` into groups of their own with learning rate `rate`; everything else of
    their groups stays. Call it before a scheduler is made."""
    moving = {id(parameter) for parameter in parameters}
    for group in list(optimizer.param_groups):
        theirs = [one for one in group["params"] if id(one) in moving]
        if not theirs:
            continue
        group["params"] = [one for one in group["params"] if id(one) not in moving]
        optimizer.add_param_group({**group, "params": theirs, "lr": rate})
