"""A stored optimiser's state under the class name of an earlier version."""

from __future__ import annotations

import pytest
import torch

from tunesmith_worker.engine.optimizers.split_master import SplitMasterAdamW
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.trainer.checkpoints.optimizer_state import optimizer_state, restore_optimizer


def _optimizer() -> tuple[SplitMasterAdamW, dict[torch.Tensor, str]]:
    weight = torch.nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16))
    weight.grad = torch.full_like(weight, 0.5)
    return SplitMasterAdamW([weight], lr=1e-3), {weight: "weight"}


def test_a_former_optimizer_name_is_read() -> None:
    optimizer, names = _optimizer()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    plain, tensors = optimizer_state(optimizer, names, schedule)
    assert plain["kind"] == "SplitMasterAdamW"
    assert set(tensors) == {"exp_avg/weight", "exp_avg_sq/weight", "error/weight"}
    restored, own_names = _optimizer()
    restore_optimizer(restored, own_names, plain | {"kind": "ErrorWordAdamW"}, tensors)
    (state,) = restored.state.values()
    assert state["step"] == 1
    for key in ("exp_avg", "exp_avg_sq", "error"):
        assert torch.equal(state[key], tensors[f"{key}/weight"])
    with pytest.raises(RunError):
        restore_optimizer(restored, own_names, plain | {"kind": "AdamW"}, tensors)
