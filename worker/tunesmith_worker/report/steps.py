"""Puts the clock into a trainer: which of its methods a moment of training belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunesmith_schema import PhaseName

from .batches import BatchCounts
from .clock import WallClock
from .cuda import CudaTimeline

Untyped = Any  # Any: transformers and TRL are untyped


def time_steps(trainer: Untyped, clock: WallClock, counts: BatchCounts) -> CudaTimeline | None:
    """Wrap this one trainer's methods. On a GPU the clock follows the timeline that is returned;
    it is `clock.unfollow()` that ends it."""
    trainer.data_collator = counts.counting(trainer.data_collator, lambda: clock.phase)
    _wrap(trainer, "get_train_dataloader", PhaseName.SETUP, clock)
    _wrap(trainer, "_prepare_for_training", PhaseName.SETUP, clock)
    _wrap(trainer, "get_batch_samples", PhaseName.DATA_WAIT, clock)
    _wrap(trainer, "_maybe_log_save_evaluate", PhaseName.LOGGING, clock)
    _wrap(trainer, "evaluate", PhaseName.EVALUATION, clock)
    _wrap(trainer, "_save_checkpoint", PhaseName.CHECKPOINTING, clock)
    _split_step(trainer, clock)
    _count_batches(trainer, counts)
    clock.computed = counts.computed
    if trainer.args.device.type != "cuda":
        return None
    timeline = CudaTimeline(clock.charge)
    clock.follow(timeline)
    return timeline


def _wrap(trainer: Untyped, name: str, phase: PhaseName, clock: WallClock) -> None:
    method = getattr(trainer, name)

    def timed(*arguments: Untyped, **named: Untyped) -> Untyped:
        with clock.during(phase):
            return method(*arguments, **named)

    setattr(trainer, name, timed)


def _split_step(trainer: Untyped, clock: WallClock) -> None:
    """A training step is forward until the loss is there, then backward; what follows the last
    micro-batch is the optimiser's, until the trainer looks whether to log."""
    training_step, compute_loss = trainer.training_step, trainer.compute_loss

    def timed_step(*arguments: Untyped, **named: Untyped) -> Untyped:
        clock.switch(PhaseName.FORWARD)
        loss = training_step(*arguments, **named)
        last = trainer.accelerator.sync_gradients
        clock.switch(PhaseName.OPTIMIZER if last else PhaseName.TRAIN)
        return loss

    def timed_loss(*arguments: Untyped, **named: Untyped) -> Untyped:
        loss = compute_loss(*arguments, **named)
        if clock.phase == PhaseName.FORWARD:  # evaluations come here too
            clock.switch(PhaseName.BACKWARD)
        return loss

    trainer.training_step, trainer.compute_loss = timed_step, timed_loss
    log_save_evaluate: Callable[..., Untyped] = trainer._maybe_log_save_evaluate

    def after_step(*arguments: Untyped, **named: Untyped) -> Untyped:
        clock.switch(PhaseName.TRAIN)
        return log_save_evaluate(*arguments, **named)

    trainer._maybe_log_save_evaluate = after_step


def _count_batches(trainer: Untyped, counts: BatchCounts) -> None:
    get_batch_samples = trainer.get_batch_samples

    def counted(*arguments: Untyped, **named: Untyped) -> Untyped:
        batches, items = get_batch_samples(*arguments, **named)
        counts.handed_out(batches)
        return batches, items

    trainer.get_batch_samples = counted
