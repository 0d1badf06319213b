"""Reasons for which queued jobs wait, each as a code and a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tunesmith_schema import WaitingBecause, WaitingCode

from . import reservations
from .eligibility import lacks_labels, lacks_memory, lacks_model
from .snapshot import Snapshot, Waiting, Worker

GIB = 2**30


def because(snapshot: Snapshot, job: Waiting, position: int | None) -> WaitingBecause:
    """Return the first reason that applies: the delay before a retry, no ready worker, a limit, no
    worker that fits the job, other jobs before this one. `position`: expected position in the
    queue."""
    delay = (job.not_before or 0.0) - snapshot.now
    if delay > 0:
        return _why(
            WaitingCode.BACKING_OFF, f"the next attempt starts in {delay:.0f} s at the earliest"
        )
    ready = [worker for worker in snapshot.workers if not worker.not_ready]
    if not ready:
        unfit = (f"{worker.id}: {worker.not_ready}" for worker in snapshot.workers)
        return _why(
            WaitingCode.NO_WORKER, "; ".join(unfit)[:1000] or "no training worker is running"
        )
    if reason := _limit(snapshot, job) or _no_device(ready, job):
        return reason
    return _turn(snapshot, job, position)


def _limit(snapshot: Snapshot, job: Waiting) -> WaitingBecause | None:
    project = snapshot.projects.get(job.project_id)
    if project is None:
        return None
    running, limit = snapshot.devices()[project.id], project.max_running_jobs
    if limit is not None and running >= limit:
        message = f"the project runs {running} of at most {limit} jobs"
        return _why(WaitingCode.PROJECT_LIMIT, message)
    if project.id in snapshot.over_device_hours:
        message = "the project has used its device-hours of the last 30 days"
        return _why(WaitingCode.PROJECT_LIMIT, message)
    mine, limit = _running_of(snapshot, job.owner), snapshot.key_limits.get(job.owner)
    if limit is not None and mine >= limit:
        message = f"the key runs {mine} of at most {limit} jobs"
        return _why(WaitingCode.KEY_LIMIT, message)
    if job.owner in snapshot.over_device_hours:
        message = "the key has used its device-hours of the last 30 days"
        return _why(WaitingCode.KEY_LIMIT, message)
    lanes = {other.owner for other in snapshot.running if other.interactive}
    if job.interactive and job.owner in lanes:
        message = "another interactive job of the same key is running"
        return _why(WaitingCode.LANE_BUSY, message)
    return None


def _running_of(snapshot: Snapshot, owner: str) -> int:
    return sum(other.owner == owner for other in snapshot.running)


def _no_device(ready: Sequence[Worker], job: Waiting) -> WaitingBecause | None:
    needs = job.needs
    with_model = [one for one in ready if not lacks_model(one.abilities, needs)]
    if not with_model:
        return _why(WaitingCode.NO_MODEL, f"no training worker has the base model {needs.model!r}")
    labelled = [one for one in with_model if not lacks_labels(one.abilities, needs)]
    if not labelled:
        labels = ", ".join(f"{name}={value}" for name, value in needs.labels)
        model = "the base model and " if len(with_model) < len(ready) else ""
        return _why(WaitingCode.NO_LABELS, f"no training worker has {model}the labels {labels}")
    if all(lacks_memory(one.abilities, needs) for one in labelled):
        largest = max(one.abilities.device_bytes or 0 for one in labelled)
        return _why(
            WaitingCode.NO_MEMORY,
            f"the job needs {(needs.bytes or 0) / GIB:.1f} GiB, and the largest device has "
            f"{largest / GIB:.1f} GiB",
        )
    fitting = [one for one in labelled if not lacks_memory(one.abilities, needs)]
    refusals = [reservations.refuses(one.reservations, job.project_id) for one in fitting]
    if all(refusals):
        texts = dict.fromkeys(reservations.reason_of(one) for one in refusals if one)
        return _why(WaitingCode.RESERVED, "; ".join(texts)[:1000])
    return None


def _turn(snapshot: Snapshot, job: Waiting, position: int | None) -> WaitingBecause:
    ahead = max(0, (position or 1) - 1)
    queue = f"{ahead} jobs are ahead" if ahead > 1 else "1 job is ahead" if ahead else ""
    busy, evaluating = Counter[str](), 0
    holders = {other.worker_id: other for other in snapshot.running}
    for worker in snapshot.workers:
        if not worker.takes(job.project_id, job.needs):
            continue
        holder = holders.get(worker.id)
        if holder is None and worker.id in snapshot.evaluating:
            evaluating += 1
            continue
        if holder is None:
            return (
                _why(WaitingCode.BEHIND, queue)
                if ahead
                else _why(WaitingCode.STARTING, "a free training worker will claim it")
            )
        project = snapshot.projects.get(holder.project_id)
        busy[project.name if project else holder.project_id] += 1
    count = sum(busy.values()) + evaluating
    parts = [f"{name}: {number}" for name, number in busy.most_common()]
    whose = [f"running jobs of {', '.join(parts)}"] if parts else []
    whose += [f"evaluations: {evaluating}"] if evaluating else []
    devices = "the only device that fits is" if count == 1 else f"all {count} devices that fit are"
    message = f"{devices} busy ({'; '.join(whose)})" + (f"; {queue}" if queue else "")
    return _why(WaitingCode.BEHIND if ahead else WaitingCode.DEVICES_BUSY, message)


def _why(code: WaitingCode, message: str) -> WaitingBecause:
    return WaitingBecause(code=code, message=message)
