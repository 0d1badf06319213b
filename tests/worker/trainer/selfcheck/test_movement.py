"""What counts as an update that arrived."""

from __future__ import annotations

import torch

from tunesmith_worker.trainer.selfcheck.gradients import Unit
from tunesmith_worker.trainer.selfcheck.movement import Movement


def test_a_bf16_weight_that_went_and_came_back_did_move() -> None:
    """One bf16 step up at the first step, one down later: to and fro, as around a minimum."""
    weight = torch.nn.Parameter(torch.full((4, 4), 1e-4, dtype=torch.bfloat16))
    before = weight.detach().clone()
    optimizer = torch.optim.AdamW([weight], lr=1e-5)
    weight.grad = torch.ones_like(weight)
    movement = Movement([Unit(name="layer", parameters={"layer.weight": weight})], optimizer)
    movement.record_rates()
    optimizer.step()
    assert not torch.equal(weight, before)
    assert not list(movement.check(fresh=True))
    with torch.no_grad():
        weight.copy_(before)
    movement.record_rates()
    assert not list(movement.check(fresh=False))


def test_a_weight_that_never_moves_is_named() -> None:
    weight = torch.nn.Parameter(torch.full((4, 4), 1e-4, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW([weight], lr=1e-5)
    weight.grad = torch.ones_like(weight)
    movement = Movement([Unit(name="layer", parameters={"layer.weight": weight})], optimizer)
    for fresh in (True, False):
        movement.record_rates()
        (finding,) = movement.check(fresh=fresh)
        assert "layer did not move" in finding.message
