"""What bounds a run: the largest part of its wall time, by rules that stand here as data.

Pure functions of a report. Does not import torch: the supervisor judges too.
"""

from __future__ import annotations

from tunesmith_schema import COMPUTE, STARTUP, Bound, BoundBy, PhaseName, RunReport

PARTS: tuple[tuple[BoundBy, tuple[PhaseName, ...], str], ...] = (
    (BoundBy.DEVICE_COMPUTE, COMPUTE, "forward, backward and optimiser"),
    (BoundBy.STARTUP, (*STARTUP, PhaseName.EXIT), "starting and ending"),
    (BoundBy.DATA, (PhaseName.DATA_WAIT,), "waiting for batches"),
    (BoundBy.EVALUATION, (PhaseName.EVALUATION,), "evaluation"),
    (
        BoundBy.CHECKPOINTING,
        (PhaseName.CHECKPOINTING, PhaseName.SAVE, PhaseName.UPLOAD),
        "checkpoints, saving and storing",
    ),
    (BoundBy.HOST, (PhaseName.TRAIN, PhaseName.LOGGING), "the trainer's own loop and logging"),
    (BoundBy.UNKNOWN, (PhaseName.OTHER,), "time that is not accounted for"),
)
"""Which phases speak for which bound; the part with the most seconds wins."""

HOST_WAITS = 0.5
"""Compute on a GPU is the host's when the GPU had run out of work at the end of more steps."""
MEMORY_FULL = 0.9
"""Memory bounds when more of the GPU's was reserved and batches are split or recomputed for it."""


def seconds_in(report: RunReport, *phases: PhaseName) -> float:
    return sum(report.phases.get(phase, 0.0) for phase in phases)


def bound_of(report: RunReport) -> Bound:
    if report.wall_seconds <= 0 or not report.phases:
        return Bound(by=BoundBy.UNKNOWN, text="nothing is known yet")
    by, phases, what = max(PARTS, key=lambda part: seconds_in(report, *part[1]))
    seconds = seconds_in(report, *phases)
    share = f"{what}: {seconds:.1f} of {report.wall_seconds:.1f} s"
    if by is not BoundBy.DEVICE_COMPUTE:
        return Bound(by=by, text=f"{share}, more than any other part")
    return _of_compute(report, share)


def _of_compute(report: RunReport, share: str) -> Bound:
    waits, memory, settings = report.device_waits_share, report.peak_memory, report.settings
    if waits is not None and waits > HOST_WAITS:
        return Bound(
            by=BoundBy.HOST,
            text=f"{share}; at the end of {waits:.0%} of the steps the GPU had nothing left to do",
        )
    full = (memory.reserved or 0) / (memory.device_total or 1)
    split = settings is not None and (
        settings.gradient_checkpointing or settings.gradient_accumulation_steps > 1
    )
    if full > MEMORY_FULL and split:
        return Bound(
            by=BoundBy.MEMORY,
            text=f"{share}, with {full:.0%} of the GPU's memory reserved and batches that are "
            "recomputed or split to fit",
        )
    return Bound(by=BoundBy.DEVICE_COMPUTE, text=f"{share}, more than any other part")
