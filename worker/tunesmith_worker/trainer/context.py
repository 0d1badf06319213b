"""Context of a run: objects that both supervised and reinforcement training need. Importing this
module must not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunesmith_schema import RunSpec
from tunesmith_worker.rundir.control import StopControl
from tunesmith_worker.rundir.device_use import TrainerUse
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import RunDirectory
from tunesmith_worker.rundir.plan_file import PlanFile
from tunesmith_worker.rundir.verify_resume_point import ValidResumePoint
from tunesmith_worker.trainer.report.recorder import RunRecorder

if TYPE_CHECKING:
    from .rewards import LocalReward


@dataclass(frozen=True, kw_only=True)
class RunContext:
    run: RunDirectory
    spec: RunSpec
    events: EventLog
    control: StopControl
    recorder: RunRecorder
    plan: PlanFile
    device_use: TrainerUse
    """Object that asks the chat process on this host to free memory."""
    point: ValidResumePoint | None
    """Resume point from which the run continues; None if the run starts at step 0."""
    rewards: Sequence[LocalReward] = ()
    """Reward functions given on the command line."""
