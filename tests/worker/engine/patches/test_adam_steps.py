"""Twenty steps of Adam (eps 1e-8, as everybody has it) change every weight as stock does.

Adam divides by the gradient's own size: an element whose first gradient is smaller than its
rounding error takes a whole step to whichever side the rounding points, in stock as in ours
(docs/contributing/log). Where a tensor has such elements, ours may differ by what stock's own
rounding does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tunesmith_worker.engine.patches import patch

from .models import FAMILIES, make_tuned, packed_batch, relative_rms, run_step

Untyped = Any  # Any: transformers and PEFT are not typed
Tensors = dict[str, torch.Tensor]

QUICK = {"qwen3", "gemma3", "granite", "olmo2"}
"""Families that differ in norms, scales and their places; the others' layers are made of the same
parts, and their tests take half a minute."""
STEPS = 20
LIMIT = 1e-4
REPLAYS = 16


@dataclass(frozen=True, kw_only=True)
class Run:
    losses: list[float]
    gradients: list[Tensors]
    change: Tensors


class _Float64(TorchFunctionMode):
    """transformers computes norms, RoPE and softmax in fp32 whatever the dtype: not here."""

    def __torch_function__(
        self, function: Untyped, types: Untyped, args: Untyped = (), kwargs: Untyped = None
    ) -> Untyped:
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.float and not args[0].is_floating_point():
            return args[0].double()  # positions
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64:
            to_fp32 = function is torch.Tensor.to and torch.float32 in args[1:]
            if function is torch.Tensor.float or to_fp32:
                return args[0]
            if kwargs.get("dtype") is torch.float32:
                kwargs["dtype"] = torch.float64
        return function(*args, **kwargs)


def adam(parameters: list[torch.Tensor], weight_decay: float = 0.01) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=1e-4, eps=1e-8, weight_decay=weight_decay)


def trained(model: Untyped, inside: Callable[[], AbstractContextManager[object]]) -> Run:
    batches = [packed_batch(seed=seed) for seed in range(4)]
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    before = {name: p.detach().clone() for name, p in named.items()}
    optimiser = adam(list(named.values()))
    losses, gradients = [], []
    for step in range(STEPS):
        with inside():
            output, found = run_step(model, batches[step % 4])
        losses.append(output.loss.item())
        gradients.append(found)
        optimiser.step()
    change = {name: (p.detach() - before[name]).double() for name, p in named.items()}
    return Run(losses=losses, gradients=gradients, change=change)


def run(family: str, tuning: str, side: str, fault: float = 0.0) -> Run:
    """`side`: "stock", "ours" or "float64" (stock). `fault`: what a broken kernel would add to
    every gradient, relative."""
    model = make_tuned(family, tuning)
    if side == "float64":
        return trained(model.double(), _Float64)
    if side == "ours":
        patch(model)
    for parameter in model.parameters():
        if fault and parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient + fault * gradient.roll(1))
    return trained(model, nullcontext)


def replayed(gradients: list[torch.Tensor]) -> torch.Tensor:
    """The change of a weight: without decay it is the same wherever the weight starts."""
    weight = torch.nn.Parameter(torch.zeros_like(gradients[0]))
    optimiser = adam([weight], weight_decay=0.0)
    for gradient in gradients:
        weight.grad = gradient
        optimiser.step()
    return weight.detach()


def stocks_own(name: str, stock: Run, truth: Run) -> float:
    """How far the rounding of stock's gradients, as large as it is against float64 and drawn again,
    moves the weights: the most of some draws, relative. From the gradients and not from the two
    runs' weights, which also differ by the storing of weights in fp32 that both sides share."""
    draw = torch.Generator().manual_seed(0)
    exact = [one[name] for one in truth.gradients]
    rounding = [
        (one[name] - two).square().mean().sqrt()
        for one, two in zip(stock.gradients, exact, strict=True)
    ]
    change = replayed(exact)

    def drawn() -> torch.Tensor:
        noise = (torch.randn(one.shape, generator=draw, dtype=one.dtype) for one in exact)
        return replayed(
            # a token that is not in the batch has a gradient of exactly zero on every side
            [g + (g != 0) * e * n for g, e, n in zip(exact, rounding, noise, strict=True)]
        )

    return max(relative_rms(drawn(), change) for _ in range(REPLAYS))


def too_far(ours: Run, stock: Run, truth: Callable[[], Run]) -> dict[str, tuple[float, float]]:
    """Tensors whose change is off by more than 1e-4 and more than stock's own rounding does; NaN is
    too far from everything."""
    apart = {name: relative_rms(ours.change[name], one) for name, one in stock.change.items()}
    suspects = {name: distance for name, distance in apart.items() if not distance <= LIMIT}
    exact = truth() if suspects else None
    bounds = {name: stocks_own(name, stock, exact) for name in suspects if exact is not None}
    return {n: (d, bounds[n]) for n, d in suspects.items() if not d <= bounds[n]}


@pytest.mark.parametrize("tuning", ["lora", "full"])
@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=[] if f in QUICK else pytest.mark.slow) for f in FAMILIES],
)
def test_weights_change_as_in_stock(family: str, tuning: str) -> None:
    stock, ours = run(family, tuning, "stock"), run(family, tuning, "ours")
    assert ours.losses == pytest.approx(stock.losses, rel=1e-6)
    assert not too_far(ours, stock, lambda: run(family, tuning, "float64"))


@pytest.mark.parametrize(("family", "tuning"), [("llama-3-rope", "full"), ("granite", "lora")])
def test_a_small_fault_is_told_from_rounding(family: str, tuning: str) -> None:
    """Also where stock's own rounding moves an element by a whole step."""
    stock, broken = run(family, tuning, "stock"), run(family, tuning, "ours", fault=1e-3)
    found = too_far(broken, stock, lambda: run(family, tuning, "float64"))
    assert len(found) > 0.9 * len(stock.change)
