"""Set the learning rate of the embedding, the head and token rows.

In each step, Adam changes every parameter by about the learning rate. The row of a rare token gets
few updates, so the noise in these updates does not average out. LoRA's learning rate is ten times
as high as the learning rate for full tuning. For rare tokens, LoRA's learning rate is too high.
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
    """Return the learning rate of embedding and head parameters. Return None if the embedding and
    the head are frozen or have the same learning rate as all other parameters."""
    requested = recipe.embedding_learning_rate
    if not embedding_parameters(model) or (recipe.tuning == "full" and requested == "auto"):
        return None
    return choices.resolve(
        "embedding_learning_rate", requested, learning_rate / 10, "a tenth of learning_rate"
    )


def embedding_parameters(model: Untyped) -> list[torch.nn.Parameter]:
    """Return the trained parameters of the embedding and the head, without duplicates."""
    causal = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    parameters = (p for m in Matrices.of(causal).named for p in m.module.parameters())
    return list({id(p): p for p in parameters if p.requires_grad}.values())


def set_learning_rate(
    optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter], rate: float
) -> None:
    """Move `parameters` to new parameter groups with the learning rate `rate`.

    The new parameter groups keep all other options. Call this function before a scheduler is
    created."""
    moving = {id(parameter) for parameter in parameters}
    for group in list(optimizer.param_groups):
        moved = [p for p in group["params"] if id(p) in moving]
        if not moved:
            continue
        group["params"] = [p for p in group["params"] if id(p) not in moving]
        optimizer.add_param_group({**group, "params": moved, "lr": rate})
