"""Find a run's bottleneck: the part with the most wall time, from a table of phases."""

from __future__ import annotations

from tunesmith_schema import COMPUTE, STARTUP, Bound, BoundBy, PhaseName, Rollouts, RunReport

from .memory_choice import gib, keep_all_estimate

PARTS: tuple[tuple[BoundBy, tuple[PhaseName, ...], str], ...] = (
    (
        BoundBy.DEVICE_COMPUTE,
        (*COMPUTE, PhaseName.LOG_PROBS),
        "forward, backward and optimiser",
    ),
    (BoundBy.GENERATION, (PhaseName.SYNC, PhaseName.GENERATE), "generating completions"),
    (BoundBy.GRADING, (PhaseName.GRADE,), "waiting for graders"),
    (BoundBy.STARTUP, (*STARTUP, PhaseName.EXIT), "starting and ending"),
    (BoundBy.DATA, (PhaseName.DATA_WAIT,), "waiting for batches"),
    (BoundBy.EVALUATION, (PhaseName.EVALUATION,), "evaluation"),
    (
        BoundBy.CHECKPOINTING,
        (PhaseName.CHECKPOINTING, PhaseName.SAVE, PhaseName.UPLOAD),
        "checkpoints, saving and storing",
    ),
    (BoundBy.HOST, (PhaseName.TRAIN, PhaseName.LOGGING), "the trainer's own loop and logging"),
    (BoundBy.UNKNOWN, (PhaseName.OTHER,), "unaccounted time"),
)
"""Parts of a run, each with bottleneck code, phases and display name. The part with the most
seconds is the bottleneck."""

HOST_WAITS = 0.5
"""The host is the bottleneck if more than this share of the steps ends with an idle GPU."""


def phase_seconds(report: RunReport, *phases: PhaseName) -> float:
    return sum(report.phases.get(phase, 0.0) for phase in phases)


def find_bound(report: RunReport) -> Bound:
    if report.wall_seconds <= 0 or not report.phases:
        return Bound(by=BoundBy.UNKNOWN, text="no data yet")
    by, phases, name = max(PARTS, key=lambda part: phase_seconds(report, *part[1]))
    seconds = phase_seconds(report, *phases)
    share = f"{name}: {seconds:.1f} of {report.wall_seconds:.1f} s"
    if by is BoundBy.GENERATION and report.rollouts is not None:
        return Bound(by=by, text=f"{share}, {_rollout_text(report.rollouts)}")
    if by is not BoundBy.DEVICE_COMPUTE:
        return Bound(by=by, text=f"{share}, more than any other part")
    return _compute_bound(report, share)


def _rollout_text(rollouts: Rollouts) -> str:
    speed = (
        ""
        if rollouts.tokens_per_second is None
        else f" at {rollouts.tokens_per_second:,.0f} tokens/s"
    )
    mean = "" if rollouts.mean_length is None else f", {rollouts.mean_length:,.0f} tokens each"
    return f"more than any other part ({rollouts.completions:,} completions{mean}{speed})"


def _compute_bound(report: RunReport, share: str) -> Bound:
    waits, planned, settings = report.device_waits_share, keep_all_estimate(report), report.settings
    if waits is not None and waits > HOST_WAITS:
        return Bound(
            by=BoundBy.HOST,
            text=f"{share}; the GPU was idle at the end of {waits:.0%} of the steps",
        )
    recomputes = settings is not None and settings.gradient_checkpointing
    if planned is not None and not planned.fits and (recomputes or planned.saved > 0):
        return Bound(
            by=BoundBy.MEMORY,
            text=f"{share}; the run recomputes activations or splits batches to save memory: "
            f"keeping all activations needs {gib(planned.peak_bytes)}; available: "
            f"{gib(planned.budget_bytes)}",
        )
    return Bound(by=BoundBy.DEVICE_COMPUTE, text=f"{share}, more than any other part")
