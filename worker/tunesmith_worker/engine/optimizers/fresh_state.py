"""An optimiser's state, made before its first update and as it would make it itself.

torch makes it inside the first `step`, group by group: running out of memory there can leave one
group updated and the next one not. Knows nothing of trainers.
"""

from __future__ import annotations

from typing import Any

import torch

from .split_master import SplitMasterAdamW

Untyped = Any  # Any: accelerate is not typed


def make_state(optimizer: Untyped) -> None:
    """For all trained parameters that have none yet, or for none of them where memory runs out;
    then raises what ran out. Other optimisers than the ones we train with make theirs later."""
    optimizer = getattr(optimizer, "optimizer", optimizer)  # in accelerate's
    made = []
    try:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if not parameter.requires_grad or optimizer.state.get(parameter):
                    continue
                made.append(parameter)
                if isinstance(optimizer, SplitMasterAdamW):
                    optimizer.state[parameter] |= optimizer.fresh(parameter)
                elif type(optimizer) is torch.optim.AdamW and not group["amsgrad"]:
                    optimizer.state[parameter] |= _adamw(parameter, group)
    except Exception:  # whatever it is, half a state must not stay: torch would take it for whole
        for parameter in made:
            optimizer.state.pop(parameter, None)
        raise


def state_bytes(optimizer: Untyped) -> int:
    """Of what there is."""
    optimizer = getattr(optimizer, "optimizer", optimizer)
    return sum(
        one.nbytes
        for state in optimizer.state.values()
        for one in state.values()
        if isinstance(one, torch.Tensor)
    )


def _adamw(parameter: torch.Tensor, group: dict[str, Any]) -> dict[str, torch.Tensor]:
    """As torch.optim.Adam._init_group has it."""
    on_device = group["capturable"] or group["fused"]
    return {
        "step": torch.zeros(
            (), dtype=torch.float32, device=parameter.device if on_device else "cpu"
        ),
        "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
    }
