"""Puts the clock into a trainer: which of its methods a moment of training belongs to."""

from __future__ import annotations

from typing import Any

from tunesmith_schema import PhaseName
from tunesmith_worker.rundir.clock import WallClock
from tunesmith_worker.trainer.auto.layouts import Layouts

from .batches import BatchCounts
from .cuda import CudaTimeline

Untyped = Any  # Any: transformers and TRL are untyped

PHASES = {
    "get_train_dataloader": PhaseName.SETUP,
    "_prepare_for_training": PhaseName.SETUP,
    "get_batch_samples": PhaseName.DATA_WAIT,
    "_maybe_log_save_evaluate": PhaseName.LOGGING,
    "evaluate": PhaseName.EVALUATION,
    "_save_checkpoint": PhaseName.CHECKPOINTING,
}
"""Methods of transformers' Trainer that are one phase each; those called inside another count for
themselves."""


def time_steps(
    trainer: Untyped, clock: WallClock, counts: BatchCounts, layouts: Layouts
) -> CudaTimeline | None:
    """Wrap this one trainer's methods. On a GPU the clock follows the timeline that is returned;
    it is `clock.unfollow()` that ends it."""
    for name, phase in PHASES.items():
        _wrap(trainer, name, phase, clock)
    _split_step(trainer, clock, counts, layouts)
    clock.computed = counts.computed
    if trainer.args.device.type != "cuda":
        return None
    timeline = CudaTimeline(clock.charge)
    clock.follow(timeline)
    return timeline


def _wrap(trainer: Untyped, name: str, phase: PhaseName, clock: WallClock) -> None:
    method = getattr(trainer, name)

    def timed(*arguments: Untyped, **named: Untyped) -> Untyped:
        if clock.phase == PhaseName.OPTIMIZER:  # the step has ended where logging begins
            clock.switch(PhaseName.TRAIN)
        with clock.during(phase):
            return method(*arguments, **named)

    setattr(trainer, name, timed)


def _split_step(trainer: Untyped, clock: WallClock, counts: BatchCounts, layouts: Layouts) -> None:
    """Laying out the step's rows counts as data. Of each micro-batch, forward until the loss is
    there, then backward; after the last one the optimiser, until the trainer looks whether to
    log."""
    training_step, compute_loss = getattr(trainer, trainer.TIMED_STEP), trainer.compute_loss
    restore_counters = trainer.restore_counters

    def timed_step(model: Untyped, inputs: Untyped, *rest: Untyped, **named: Untyped) -> Untyped:
        counts.step(inputs["lengths"])
        clock.switch(PhaseName.DATA_WAIT)
        loss = training_step(model, inputs, *rest, **named)
        clock.switch(PhaseName.OPTIMIZER)
        return loss

    def timed_loss(model: Untyped, inputs: Untyped, *rest: Untyped, **named: Untyped) -> Untyped:
        # In FORWARD when the step begins again: memory ran out in there.
        if clock.phase not in (PhaseName.DATA_WAIT, PhaseName.FORWARD, PhaseName.BACKWARD):
            return compute_loss(model, inputs, *rest, **named)  # of an evaluation
        slots = trainer.describe(inputs).tokens
        counts.micro_batch(slots, settled=not layouts.measuring)
        clock.switch(PhaseName.FORWARD)
        loss = compute_loss(model, inputs, *rest, **named)
        clock.switch(PhaseName.BACKWARD)
        return loss

    def step_again(counters: Untyped) -> None:
        counts.step_again(in_forward=clock.phase == PhaseName.FORWARD)
        restore_counters(counters)

    setattr(trainer, trainer.TIMED_STEP, timed_step)
    trainer.compute_loss = timed_loss
    trainer.restore_counters = step_again
