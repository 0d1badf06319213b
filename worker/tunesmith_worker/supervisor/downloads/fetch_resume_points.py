"""Get resume points for an attempt from earlier attempts on this host or from storage.

This module also cleans up run directories. Downloads run in a separate thread, while the main
thread reports to the server.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tunesmith_schema import Claim, Outcome, ResumePoint
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import RunDirectory, new_folder
from tunesmith_worker.rundir.resume_point import (
    PREFIX,
    list_resume_points,
    remove_resume_points,
    resume_step,
)
from tunesmith_worker.rundir.verify_resume_point import DamagedResumePoint, verify
from tunesmith_worker.supervisor.server_api import ServerApi, ServerRefused, ServerUnreachable

Retry = Callable[[Callable[[], None]], None]
"""Function that repeats a transfer until it succeeds."""


def fetch_resume_points(
    api: ServerApi, claim: Claim, root: Path, retry: Retry, events: EventLog
) -> None:
    """Put resume points into `root`/checkpoints, and warn about unusable resume points.

    Without a resume point, the run starts at step 0. If the previous attempt ended in the middle of
    a step, the completions of this step are moved to the new attempt."""
    stored = {point.step for point in claim.resume_points}
    local = _newest_local(root, claim, stored, events)
    if local is not None:
        _link(local, root / "checkpoints" / local.name)
    best = -1 if local is None else resume_step(local) or 0
    for point in claim.resume_points:
        if point.step <= best or _fetched(api, claim, point, root, retry, events):
            break
    attempts = _earlier(root, claim.attempt)
    if list_resume_points(root / "checkpoints"):
        for attempt in attempts:
            remove_resume_points(attempt / "checkpoints")
    for attempt in attempts[:1]:
        with suppress(FileNotFoundError):  # the run is not reinforcement, or has no completions yet
            RunDirectory(attempt).rollouts.rename(RunDirectory(root).rollouts)


def clean_run_directory(root: Path, outcome: Outcome) -> None:
    """Remove files that a finished attempt no longer needs.

    Spec, plan, events and log stay. The resume points stay if the attempt was released. All other
    files are removed, because storage has a copy of each."""
    for name in ("data", "adapter", "samples"):
        shutil.rmtree(root / name, ignore_errors=True)
    if outcome.state != "released":
        for attempt in root.parent.glob("attempt-*"):
            shutil.rmtree(attempt / "checkpoints", ignore_errors=True)
            RunDirectory(attempt).rollouts.unlink(missing_ok=True)
        return
    for folder in (root / "checkpoints").glob("*"):
        if resume_step(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)


def _earlier(root: Path, attempt: int) -> list[Path]:
    """Return the run directories of the attempts just before `attempt`, newest first.

    The search goes from attempt to attempt, and stops at an attempt that has no folder. This
    attempt ran on another host, so the resume points of older attempts are out of date."""
    folders = []
    for number in range(attempt - 1, 0, -1):
        folder = root.with_name(f"attempt-{number}")
        if not folder.is_dir():
            break
        folders.append(folder)
    return folders


def _newest_local(root: Path, claim: Claim, stored: set[int], events: EventLog) -> Path | None:
    for attempt in _earlier(root, claim.attempt):
        for folder in list_resume_points(attempt / "checkpoints"):
            step = resume_step(folder)
            if step is None or not (step in stored or _is_fully_reported(claim, step)):
                continue
            try:
                verify(folder)
            except DamagedResumePoint as error:
                name = f"{attempt.name}/{folder.parent.name}/{folder.name}"
                events.message(f"resume point {name} is damaged: {error}", level="warn")
                continue
            return folder
    return None


def _is_fully_reported(claim: Claim, step: int) -> bool:
    """Return True if the server has all metrics up to `step`.

    Events are stored in order, so metrics of a later step prove that all metrics up to `step` are
    stored. A killed worker may have saved a resume point after the last step that it reported. If
    the job continued from that resume point, the steps after the last reported step would have no
    metrics.
    """
    every = claim.recipe.logging_steps
    return claim.step >= (step // every + 1) * every


def _link(folder: Path, target: Path) -> None:
    """Hard-link the files of a resume point; these files never change."""
    with new_folder(target) as part:
        for file in folder.iterdir():
            os.link(file, part / file.name)


def _fetched(
    api: ServerApi,
    claim: Claim,
    point: ResumePoint,
    root: Path,
    retry: Retry,
    events: EventLog,
) -> bool:
    target = root / "checkpoints" / f"{PREFIX}{point.step}"
    try:
        with new_folder(target) as part:
            for file in point.files:
                assert Path(file.name).name == file.name, "a resume point has no subfolders"
                retry(
                    lambda f=file: api.fetch_resume_file(  # type: ignore[misc]  # the default binds the loop's value
                        claim.job_id, claim.fence, f, part / f.name
                    )
                )
    except (ServerRefused, ServerUnreachable) as error:
        events.message(
            f"cannot fetch the resume point of step {point.step} from storage: {error}"[:4000],
            level="warn",
        )
        shutil.rmtree(target.with_name(f".{target.name}.part"), ignore_errors=True)
        return False
    return True
