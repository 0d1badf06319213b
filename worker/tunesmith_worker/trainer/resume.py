"""What a run goes on from: the newest good resume point of its directory, if it is this run's."""

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

_OF_A_FORK = ("recipe", "hyperparameters", "seed", "validation_file", "method.reinforcement.")
"""What another job may have differently; what then does not fit shows when it is loaded."""


def restart_after_success(run: RunDirectory) -> None:
    """A run that has succeeded is repeated from its start."""
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
    """Verified, told, and with its plan.json in place where the run has none. Raises RunError when
    it was made for something else."""

    def refused(name: str, why: str) -> None:
        events.message(
            f"{run.relative(run.checkpoints / name)} is no resume point: {why}. The one before is "
            "used.",
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
            "The resume point that this job was to start from is not there, or is damaged.",
            hint="Fork from another checkpoint.",
        )
    step = 0 if point is None else point.step
    remove_samples(run, after=step)
    if point is not None or spec.attempt > 1:
        text = f"goes on after step {step}" if point else "begins at step 0: nothing to go on from"
        events.append(EventKind.RESUMED, text, {"step": step})
    return point


def check_steps_left(point: ValidResumePoint | None, total_steps: int) -> None:
    if point is not None and point.step >= total_steps:
        raise RunError(
            ErrorCode.RESUME_MISMATCH,
            f"The resume point has done {point.step} steps, and the recipe gives {total_steps}.",
            hint=f"Set recipe.max_steps to more than {point.step}.",
            param="recipe.max_steps",
        )


def _check(point: ValidResumePoint, run: RunDirectory, spec: RunSpec) -> None:
    found = differences(point.manifest.made_for, made_for(run, spec))
    if spec.forked:
        found = [one for one in found if not one[0].startswith(_OF_A_FORK)]
    if not found:
        return
    told = "; ".join(f"{name}: {how}" for name, how in found)
    raise RunError(
        ErrorCode.RESUME_MISMATCH,
        f"The run cannot go on after step {point.step}, because it is no longer the same: {told}.",
        hint="Put it back, or fork the job from its checkpoint; to train anew, start a new job "
        f"(by hand: remove {point.folder.parent.name}/{PREFIX}* and plan.json).",
        param=found[0][0],
    )


def _warn_of_versions(point: ValidResumePoint, events: EventLog) -> None:
    now, then = made_with(), point.manifest.made_with
    before = {name: then.get(name, "none") for name in now}
    changed = [f"{name} {before[name]} -> {now[name]}" for name in now if before[name] != now[name]]
    if changed:
        events.message(
            f"{point.folder.name} was made with other versions ({', '.join(changed)}): the run "
            "goes on, but perhaps not bit for bit as it would have.",
            level="warn",
        )


def _remove_damaged(run: RunDirectory, point: ValidResumePoint | None) -> None:
    """They were told, and would be in the way of the one that is written there next."""
    for folder in list_resume_points(run.checkpoints):
        if point is not None and folder == point.folder:
            return
        shutil.rmtree(folder, ignore_errors=True)
    for part in run.checkpoints.glob(".*.part"):
        shutil.rmtree(part, ignore_errors=True)
