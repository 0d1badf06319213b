"""Faults that are added to a run when its trainer exists, just before training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worker.runs import read_result
from tunesmith_schema import JobFailure
from tunesmith_worker.trainer.methods.sft import SFTTrainer
from tunesmith_worker.trainer.run import main

Untyped = Any  # Any: transformers is untyped
TEN: dict[str, Any] = {  # Any: JSON
    "max_steps": 11,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "packing": False,
}
FULL: dict[str, Any] = {**TEN, "tuning": "full", "lora": None}
Plant = Callable[[Untyped], None]
"""Given the trainer."""


def trained(run: Path, plant: Plant) -> Untyped:
    """Run with an added fault. Return the trainer, even if the run failed."""
    trainers, train = [], SFTTrainer.train

    def planted(trainer: Untyped, *arguments: Untyped, **named: Untyped) -> Untyped:
        trainers.append(trainer)
        plant(trainer)
        return train(trainer, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SFTTrainer, "train", planted)
        main(run)
    (trainer,) = trainers
    return trainer


def failure(run: Path, plant: Plant) -> JobFailure:
    """Return the error of a run with an added fault."""
    trained(run, plant)
    error = read_result(run).error
    assert error is not None
    return error
