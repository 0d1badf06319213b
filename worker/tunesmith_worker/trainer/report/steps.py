"""Timing of a trainer's methods: a method's time counts for one phase, such as evaluation."""

from __future__ import annotations

from typing import Any

from tunesmith_schema import PhaseName
from tunesmith_worker.rundir.clock import WallClock

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
"""Phase for which the time of each Trainer method counts. If a timed method calls another timed
method, the time of the inner call counts only for the inner method's phase."""


def time_steps(trainer: Untyped, clock: WallClock, counts: BatchCounts) -> CudaTimeline | None:
    """Measure the time of this trainer's methods by wrapping them.

    On a GPU, return a timeline of CUDA events. The clock takes its times from the CUDA events until
    `clock.unfollow()` is called.
    """
    for name, phase in PHASES.items():
        _wrap(trainer, name, phase, clock)
    _split_step(trainer, clock, counts)
    clock.computed = counts.computed
    if trainer.args.device.type != "cuda":
        return None
    timeline = CudaTimeline(clock.charge)
    clock.follow(timeline)
    return timeline


def _wrap(trainer: Untyped, name: str, phase: PhaseName, clock: WallClock) -> None:
    method = getattr(trainer, name)

    def timed(*arguments: Untyped, **named: Untyped) -> Untyped:
        if clock.phase == PhaseName.OPTIMIZER:  # the step ends when logging begins
            clock.switch(PhaseName.TRAIN)
        with clock.during(phase):
            return method(*arguments, **named)

    setattr(trainer, name, timed)


def _split_step(trainer: Untyped, clock: WallClock, counts: BatchCounts) -> None:
    """Split a step into phases.

    Building the batch layout counts as the data phase. Each micro-batch has a forward phase, which
    includes the loss, and a backward phase. After the last backward phase, the optimizer phase
    lasts until logging begins.
    """
    training_step, compute_loss = getattr(trainer, trainer.TIMED_STEP), trainer.compute_loss
    restore_counters = trainer.restore_counters

    def timed_step(model: Untyped, inputs: Untyped, *rest: Untyped, **named: Untyped) -> Untyped:
        counts.step(inputs["lengths"])
        clock.switch(PhaseName.DATA_WAIT)
        loss = training_step(model, inputs, *rest, **named)
        clock.switch(PhaseName.OPTIMIZER)
        return loss

    def timed_loss(model: Untyped, inputs: Untyped, *rest: Untyped, **named: Untyped) -> Untyped:
        # FORWARD: the step restarts because memory ran out in a forward pass.
        if clock.phase not in (PhaseName.DATA_WAIT, PhaseName.FORWARD, PhaseName.BACKWARD):
            return compute_loss(model, inputs, *rest, **named)  # an evaluation
        counts.micro_batch(trainer.describe(inputs).tokens)
        clock.switch(PhaseName.FORWARD)
        loss = compute_loss(model, inputs, *rest, **named)
        clock.switch(PhaseName.BACKWARD)
        return loss

    def restart_step(counters: Untyped) -> None:
        counts.restart_step(in_forward=clock.phase == PhaseName.FORWARD)
        restore_counters(counters)

    setattr(trainer, trainer.TIMED_STEP, timed_step)
    trainer.compute_loss = timed_loss
    trainer.restore_counters = restart_step
