"""What an attempt can go on from, into its run directory: what earlier attempts left on this host,
and what is in storage if that is newer. And what of an attempt stays when it is over.

Runs in the transfer thread; knows nothing of leases nor of what a resume point holds.
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

from .server_api import ServerApi, ServerRefused, ServerUnreachable

Insist = Callable[[Callable[[], None]], None]
"""Calls a transfer until it is through."""


def fetch_resume_points(
    api: ServerApi, claim: Claim, root: Path, insist: Insist, events: EventLog
) -> None:
    """Into `root`/checkpoints. Without any the run begins at step 0. Those that cannot be used are
    warned of. With them comes what the last attempt had drawn for its step when it died."""
    stored = {point.step for point in claim.resume_points}
    local = _newest_local(root, claim, stored, events)
    if local is not None:
        _link(local, root / "checkpoints" / local.name)
    best = -1 if local is None else resume_step(local) or 0
    for point in claim.resume_points:
        if point.step <= best or _fetched(api, claim, point, root, insist, events):
            break
    earlier_ones = _earlier(root, claim.attempt)
    if list_resume_points(root / "checkpoints"):
        for earlier in earlier_ones:
            remove_resume_points(earlier / "checkpoints")
    for earlier in earlier_ones[:1]:
        with suppress(FileNotFoundError):  # it was of another kind, or had drawn nothing
            RunDirectory(earlier).rollouts.rename(RunDirectory(root).rollouts)


def clean_run_directory(root: Path, outcome: Outcome) -> None:
    """Of an attempt that is over: spec, plan, events and log, which are small; of one that was
    released what the next can go on from. The rest is stored elsewhere."""
    for done in ("data", "adapter", "samples"):
        shutil.rmtree(root / done, ignore_errors=True)
    if outcome.state != "released":
        for attempt in root.parent.glob("attempt-*"):
            shutil.rmtree(attempt / "checkpoints", ignore_errors=True)
            RunDirectory(attempt).rollouts.unlink(missing_ok=True)
        return
    for folder in (root / "checkpoints").glob("*"):
        if resume_step(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)


def _earlier(root: Path, attempt: int) -> list[Path]:
    """Run directories of the attempts before, newest first, as far as all of them ran here: what
    an older one left is of a past that others have gone on from."""
    found = []
    for number in range(attempt - 1, 0, -1):
        folder = root.with_name(f"attempt-{number}")
        if not folder.is_dir():
            break
        found.append(folder)
    return found


def _newest_local(root: Path, claim: Claim, stored: set[int], events: EventLog) -> Path | None:
    for attempt in _earlier(root, claim.attempt):
        for folder in list_resume_points(attempt / "checkpoints"):
            step = resume_step(folder)
            if step is None or not (step in stored or _all_is_told(claim, step)):
                continue
            try:
                verify(folder)
            except DamagedResumePoint as error:
                name = f"{attempt.name}/{folder.parent.name}/{folder.name}"
                events.message(f"{name} is no resume point: {error}", level="warn")
                continue
            return folder
    return None


def _all_is_told(claim: Claim, step: int) -> bool:
    """Whether the server has everything that was told up to `step`: events are stored in order, so
    that metrics of a later step say so. A worker that was killed may have trained further than it
    had told, and those metrics would be missing for ever."""
    every = claim.recipe.logging_steps
    return claim.step >= (step // every + 1) * every


def _link(folder: Path, target: Path) -> None:
    """The same files under another name: resume points are never written to."""
    with new_folder(target) as part:
        for file in folder.iterdir():
            os.link(file, part / file.name)


def _fetched(
    api: ServerApi,
    claim: Claim,
    point: ResumePoint,
    root: Path,
    insist: Insist,
    events: EventLog,
) -> bool:
    """Each file verified by its hash; False if storage does not have it any more."""
    target = root / "checkpoints" / f"{PREFIX}{point.step}"
    try:
        with new_folder(target) as part:
            for file in point.files:
                assert Path(file.name).name == file.name, "a resume point is flat"
                insist(
                    lambda f=file: api.fetch_resume_file(  # type: ignore[misc]  # the default binds the loop's value
                        claim.job_id, claim.fence, f, part / f.name
                    )
                )
    except (ServerRefused, ServerUnreachable) as error:
        events.message(
            f"The resume point of step {point.step} cannot be had from storage: {error}"[:4000],
            level="warn",
        )
        shutil.rmtree(target.with_name(f".{target.name}.part"), ignore_errors=True)
        return False
    return True
