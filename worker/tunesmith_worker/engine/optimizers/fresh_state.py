"""Allocate an optimiser's state before its first update.

torch allocates the state in the first `step`, one parameter group at a time. If memory runs out in
the first step, only some of the parameter groups are updated.
"""

from __future__ import annotations

from typing import Any

import torch

from .split_master import SplitMasterAdamW

Untyped = Any  # Any: accelerate is not typed


def make_state(optimizer: Untyped) -> None:
    """Allocate the state of all trained parameters that have no state yet.

    If an allocation fails, the newly allocated states are removed and the error propagates. For
    optimisers other than ours and torch's AdamW, the function does nothing."""
    optimizer = getattr(optimizer, "optimizer", optimizer)  # unwrap accelerate's optimizer
    created = []
    try:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if not parameter.requires_grad or optimizer.state.get(parameter):
                    continue
                created.append(parameter)
                if isinstance(optimizer, SplitMasterAdamW):
                    optimizer.state[parameter] |= optimizer.fresh(parameter)
                elif type(optimizer) is torch.optim.AdamW and not group["amsgrad"]:
                    optimizer.state[parameter] |= _adamw(parameter, group)
    except Exception:  # catch any error, because torch would treat a partial state as complete
        for parameter in created:
            optimizer.state.pop(parameter, None)
        raise


def state_bytes(optimizer: Untyped) -> int:
    """Total bytes of the tensors in the optimiser state."""
    optimizer = getattr(optimizer, "optimizer", optimizer)
    return sum(
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )


def _adamw(parameter: torch.Tensor, group: dict[str, Any]) -> dict[str, torch.Tensor]:
    on_device = group["capturable"] or group["fused"]
    return {
        "step": torch.zeros(
            (), dtype=torch.float32, device=parameter.device if on_device else "cpu"
        ),
        "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
    }
