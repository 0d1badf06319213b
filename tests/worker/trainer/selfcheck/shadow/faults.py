"""Faults that are added to a supervised run's trainer just before training. The losses of such runs
look plausible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tunesmith_worker.trainer.data.tokens import IGNORED

Untyped = Any  # Any: transformers is untyped
Plant = Callable[[Untyped], None]
"""Given the trainer."""


def doubled_normaliser(trainer: Untyped) -> None:
    """Divide the loss by twice the number of labels."""
    compute = trainer.compute_loss

    def wrong(model: Untyped, inputs: Untyped, *rest: Untyped, **named: Untyped) -> Untyped:
        if named.get("num_items_in_batch") is not None:
            named["num_items_in_batch"] = named["num_items_in_batch"] * 2
        return compute(model, inputs, *rest, **named)

    trainer.compute_loss = wrong


def mean_of_means(trainer: Untyped) -> None:
    """Divide each micro-batch by its own number of labels and by the number of micro-batches, as
    transformers did before 4.46."""
    compute = trainer.compute_loss

    def wrong(model: Untyped, inputs: Untyped, *rest: Untyped, **named: Untyped) -> Untyped:
        own = (inputs["labels"][:, 1:] != IGNORED).sum()
        named["num_items_in_batch"] = own * trainer.current_gradient_accumulation_steps
        return compute(model, inputs, *rest, **named)

    trainer.compute_loss = wrong


def dropped_micro_batch(trainer: Untyped) -> None:
    """Never run the last micro-batch."""
    right = trainer.micro_batches
    trainer.micro_batches = lambda *given: right(*given)[:-1]


def lost_gradient(trainer: Untyped) -> None:
    """Delete the gradients after the first micro-batch, whose loss still counts."""
    compute = trainer.compute_loss
    seen: list[int] = []

    def wrong(*given: Untyped, **named: Untyped) -> Untyped:
        if len(seen) % trainer.current_gradient_accumulation_steps == 1:
            trainer.model.zero_grad()
        seen.append(1)
        return compute(*given, **named)

    trainer.compute_loss = wrong


def no_clipping(trainer: Untyped) -> None:
    """Report the norm and leave the gradients as they are."""

    def norm_only(model: Untyped) -> torch.Tensor:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        norms = [torch.linalg.vector_norm(grad) for grad in grads]
        norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return norm

    trainer._clip_grad_norm = norm_only


def _after_creation(trainer: Untyped, change: Callable[[torch.optim.Optimizer], None]) -> None:
    create = trainer.create_optimizer

    def create_optimizer(*given: Untyped) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = create(*given)
        change(optimizer)
        return optimizer

    trainer.create_optimizer = create_optimizer


def small_rate(trainer: Untyped) -> None:
    """Train with a thousandth of the learning rate."""
    trainer.args.learning_rate /= 1000


def small_updates(trainer: Untyped) -> None:
    """Apply half of each update, at the right learning rate."""

    def change(optimizer: torch.optim.Optimizer) -> None:
        before: list[torch.Tensor] = []

        def keep(*_: Untyped) -> None:
            before[:] = [p.detach().clone() for g in optimizer.param_groups for p in g["params"]]

        def halve(*_: Untyped) -> None:
            after = [p for group in optimizer.param_groups for p in group["params"]]
            with torch.no_grad():
                for now, old in zip(after, before, strict=True):
                    now.lerp_(old, 0.5)

        optimizer.register_step_pre_hook(keep)
        optimizer.register_step_post_hook(halve)

    _after_creation(trainer, change)


def no_decay(trainer: Untyped) -> None:
    trainer.args.weight_decay = 0.0


def other_schedule(trainer: Untyped) -> None:
    """Ignore the warm-up."""
    trainer.args.warmup_steps = 0
