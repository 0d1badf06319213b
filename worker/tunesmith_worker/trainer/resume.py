"""Selection of the newest valid resume point of a run."""

from __future__ import annotations

import shutil

from pydantic import ValidationError

from tunesmith_schema import ErrorCode, EventKind, RunResult, RunSpec
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import RunDirectory
from tunesmith_worker.rundir.resume_point import (
    PLAN,
    PREFIX,
    list_resume_points,
    remove_resume_points,
)
from tunesmith_worker.rundir.samples import remove_samples
from tunesmith_worker.rundir.verify_resume_point import ValidResumePoint, newest_valid
from tunesmith_worker.trainer.checkpoints.best_weights import restore_best_weights
from tunesmith_worker.trainer.checkpoints.identity import differences, made_for, made_with

_FORK_MAY_CHANGE = ("recipe", "hyperparameters", "seed", "validation_file", "method.reinforcement.")
"""Settings that a fork (a new job from another job's resume point) may change."""


def restart_after_success(run: RunDirectory) -> None:
    """Remove the resume points of a run that succeeded, so that a repeat starts at step 0."""
    try:
        earlier = RunResult.model_validate_json(run.result.read_bytes())
    except (FileNotFoundError, ValidationError):
        return
    if earlier.outcome == "succeeded":
        remove_resume_points(run.checkpoints)
        run.rollouts.unlink(missing_ok=True)


def find_resume_point(
    run: RunDirectory, spec: RunSpec, events: EventLog
) -> ValidResumePoint | None:
    """Find, verify and log the resume point, and restore its plan.json if the run has no plan.json.

    Raises RunError if the resume point belongs to another run."""

    def refused(name: str, why: str) -> None:
        events.message(
            f"{run.relative(run.checkpoints / name)} is not a valid resume point: {why}. The run "
            "uses an earlier resume point, if any.",
            level="warn",
            data={"directory": run.relative(run.checkpoints / name), "reason": why},
        )

    point = newest_valid(run.checkpoints, refused)
    _remove_damaged(run, point)
    if point is not None:
        _check(point, run, spec)
        _warn_of_versions(point, events)
        restore_best_weights(point.folder, run.checkpoints)
        if not run.plan.exists():
            shutil.copyfile(point.folder / PLAN, run.plan)
    elif spec.forked:
        raise RunError(
            ErrorCode.RESUME_MISMATCH,
            "The resume point of this fork is missing or damaged.",
            hint="Fork from another checkpoint.",
        )
    step = 0 if point is None else point.step
    remove_samples(run, after=step)
    if point is not None or spec.attempt > 1:
        text = f"resumed after step {step}" if point else "no resume point: started at step 0"
        events.append(EventKind.RESUMED, text, {"step": step})
    return point


def check_steps_left(point: ValidResumePoint | None, total_steps: int) -> None:
    if point is not None and point.step >= total_steps:
        raise RunError(
            ErrorCode.RESUME_MISMATCH,
            f"The resume point is at step {point.step}, but the recipe has {total_steps} steps.",
            hint=f"Set recipe.max_steps to more than {point.step}.",
            param="recipe.max_steps",
        )


def _check(point: ValidResumePoint, run: RunDirectory, spec: RunSpec) -> None:
    changes = differences(point.manifest.made_for, made_for(run, spec))
    if spec.forked:
        changes = [change for change in changes if not change[0].startswith(_FORK_MAY_CHANGE)]
    if not changes:
        return
    text = "; ".join(f"{name}: {how}" for name, how in changes)
    raise RunError(
        ErrorCode.RESUME_MISMATCH,
        f"The run cannot resume after step {point.step}, because its inputs changed: {text}.",
        hint="Undo the change, or fork the job from its checkpoint. To start over, create a new "
        f"job. Without a server, remove {point.folder.parent.name}/{PREFIX}* and plan.json.",
        param=changes[0][0],
    )


def _warn_of_versions(point: ValidResumePoint, events: EventLog) -> None:
    now, then = made_with(), point.manifest.made_with
    before = {name: then.get(name, "none") for name in now}
    changed = [f"{name} {before[name]} -> {now[name]}" for name in now if before[name] != now[name]]
    if changed:
        events.message(
            f"{point.folder.name} was made with other versions ({', '.join(changed)}): the run "
            "continues, but the result may differ in its last bits.",
            level="warn",
        )


def _remove_damaged(run: RunDirectory, point: ValidResumePoint | None) -> None:
    """Remove damaged resume points, which would block new resume points at the same step."""
    for folder in list_resume_points(run.checkpoints):
        if point is not None and folder == point.folder:
            return
        shutil.rmtree(folder, ignore_errors=True)
    for part in run.checkpoints.glob(".*.part"):
        shutil.rmtree(part, ignore_errors=True)
