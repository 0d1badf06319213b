"""Duration of an attempt, divided into seven groups of phases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tunesmith_schema import PhaseName
from tunesmith_schema.report import COMPUTE, STARTUP

_GROUPS: tuple[tuple[str, tuple[PhaseName, ...]], ...] = (
    ("Starting up", STARTUP),
    (
        "Generating",
        (PhaseName.SYNC, PhaseName.GENERATE, PhaseName.GRADE, PhaseName.LOG_PROBS),
    ),
    ("Training", COMPUTE),
    ("Waiting for data", (PhaseName.DATA_WAIT,)),
    ("Evaluating", (PhaseName.EVALUATION, PhaseName.EVALUATE_RESULT)),
    ("Saving", (PhaseName.CHECKPOINTING, PhaseName.SAVE, PhaseName.EXIT, PhaseName.UPLOAD)),
)
_OTHER = "Other"


@dataclass(frozen=True, kw_only=True)
class Group:
    """Group of phases: one part of the bar that shows how an attempt used its time."""

    name: str
    colour: int
    """Number of the group's colour: the class `c0` to `c6` in app.css."""
    seconds: float
    share: float
    """Share of the wall time, from 0 to 1."""
    start: float
    """Sum of the shares of the groups that come before this group."""
    parts: list[tuple[str, float]]
    """Phases of the group with their seconds, the longest first."""


def groups(phases: Mapping[str, float]) -> list[Group]:
    """Return the groups whose time is not zero. The seconds of the groups sum to the wall time."""
    whole = sum(phases.values()) or 1.0
    named = {str(phase) for _, members in _GROUPS for phase in members}
    rest = tuple(name for name in phases if name not in named)
    found, start = [], 0.0
    for colour, (name, members) in enumerate((*_GROUPS, (_OTHER, rest))):
        parts = sorted(
            ((str(part), phases[part]) for part in members if phases.get(part)),
            key=lambda part: -part[1],
        )
        seconds = sum(part[1] for part in parts)
        if not seconds:
            continue
        share = seconds / whole
        group = Group(
            name=name, colour=colour, seconds=seconds, share=share, start=start, parts=parts
        )
        found.append(group)
        start += share
    return found
