"""Saving and loading of the optimizer and scheduler state, under the names of the parameters.

Supports any `torch.optim.Optimizer` whose state consists of tensors and numbers: AdamW, fused
AdamW, SplitMasterAdamW and AdamW with 8-bit moments.
"""

from __future__ import annotations

from typing import Any

import torch

from tunesmith_schema import ErrorCode
from tunesmith_worker.rundir.errors import RunError

Untyped = Any  # Any: transformers and accelerate are not typed
Json = dict[str, Any]  # Any: JSON

_RENAMED_KINDS = {"ErrorWordAdamW": "SplitMasterAdamW"}
"""Current names of optimizer classes; the keys are their names in resume points of earlier
versions."""


def inner(optimizer: Untyped) -> torch.optim.Optimizer:
    """Return the optimizer inside accelerate's wrapper."""
    unwrapped: Untyped = getattr(optimizer, "optimizer", optimizer)
    assert isinstance(unwrapped, torch.optim.Optimizer)
    return unwrapped


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    return type(optimizer).__qualname__


def optimizer_state(
    optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str], scheduler: Untyped
) -> tuple[Json, dict[str, torch.Tensor]]:
    """Return the state without its tensors as JSON, and the tensors, not copied, under names such
    as `exp_avg/PARAMETER`.

    `names`: name of each trained parameter."""
    numbers: dict[str, Json] = {}
    tensors: dict[str, torch.Tensor] = {}
    for parameter, state in optimizer.state.items():
        name = names[parameter]
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{key}/{name}"] = value
            else:
                numbers.setdefault(name, {})[key] = value
    plain = {
        "kind": kind_of(optimizer),
        "groups": [[names[p] for p in group["params"]] for group in optimizer.param_groups],
        "numbers": numbers,
        "scheduler": scheduler.state_dict() | {"lr_lambdas": None},
    }
    return plain, tensors


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    names: dict[torch.Tensor, str],
    plain: Json,
    tensors: dict[str, torch.Tensor],
) -> None:
    """Load the saved state into the optimizer. Raises RunError if the optimizer or its parameters
    differ."""
    saved_kind = _RENAMED_KINDS.get(plain["kind"], plain["kind"])
    if kind_of(optimizer) != saved_kind:
        raise _misfit(
            f"the saved optimizer is {saved_kind}, but recipe.precision now selects "
            f"{kind_of(optimizer)}",
            "recipe.precision",
        )
    groups = [[names[p] for p in group["params"]] for group in optimizer.param_groups]
    if groups != plain["groups"]:
        raise _misfit(
            "the parameters or parameter groups of the saved optimizer are not those of this run",
            "recipe.weight_decay",
        )
    states: dict[str, Json] = {name: dict(state) for name, state in plain["numbers"].items()}
    for key, tensor in tensors.items():
        what, _, name = key.partition("/")
        states.setdefault(name, {})[what] = tensor
    fresh = optimizer.state_dict()  # keeps this run's learning rates and weight decay
    order = [names[p] for group in optimizer.param_groups for p in group["params"]]
    numbers = [number for group in fresh["param_groups"] for number in group["params"]]
    state = {n: states[name] for n, name in zip(numbers, order, strict=True) if name in states}
    optimizer.load_state_dict({"state": state, "param_groups": fresh["param_groups"]})


def restore_scheduler(
    scheduler: Untyped, optimizer: torch.optim.Optimizer, saved: Json, *, forked: bool
) -> None:
    """Load the scheduler state. If `forked`, the run continues another job: it starts at the saved
    step, but with the learning rates of its own recipe."""
    rates = list(scheduler.base_lrs)
    scheduler.load_state_dict({**saved, "lr_lambdas": [None] * len(rates)})
    if forked:
        shares = [share(scheduler.last_epoch) for share in scheduler.lr_lambdas]
        scheduler.base_lrs = rates
        scheduler._last_lr = [rate * share for rate, share in zip(rates, shares, strict=True)]
    for group, rate in zip(optimizer.param_groups, scheduler.get_last_lr(), strict=True):
        group["lr"] = rate


def _misfit(reason: str, param: str) -> RunError:
    return RunError(
        ErrorCode.RESUME_MISMATCH,
        f"The resume point does not match the recipe: {reason}.",
        hint=f"Restore the former value of {param}, or start a new job.",
        param=param,
    )
