"""Pre-emption: choice of the running jobs that must free their device for a waiting job.

A waiting job pre-empts a running job if no free worker fits the waiting job, if the waiting job
comes first in the queue, and if at least one of these conditions holds:
- the waiting job is interactive, and the running job is not;
- the waiting job has a higher priority;
- the waiting job's project has fewer devices than its guarantee, and the running job's project has
  more devices than its guarantee.
A job is pre-empted at most once in ten minutes. The worker of the pre-empted job saves a resume
point first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import JobState
from tunesmith_server.models import JobRow

from . import usage
from .snapshot import Place, Project, Running, Snapshot, Waiting, is_urgent, place, read

MIN_SECONDS_BETWEEN = 600.0
"""Minimum time between two pre-emptions of a job."""


@dataclass(frozen=True, kw_only=True)
class Preemption:
    job_id: str
    """Running job that must free its device."""
    reason: str


def find(session: Session) -> list[Preemption]:
    """Return the pre-emptions that are due now."""
    queued = select(JobRow.id).where(JobRow.state == JobState.QUEUED, is_urgent())
    if session.scalar(queued.limit(1)) is None:
        return []
    return choose(read(session, only_urgent=True))


def choose(snapshot: Snapshot) -> list[Preemption]:
    """Return the pre-emptions that are due in a snapshot of the queue."""
    devices, projects = snapshot.devices(), snapshot.projects
    free = snapshot.free_workers()  # includes devices that will be free soon
    by_worker = {job.worker_id: job for job in snapshot.running}
    free += [worker for worker in snapshot.workers if _frees_device(by_worker.get(worker.id))]
    lanes = {job.owner for job in snapshot.running if job.interactive}
    keys = Counter(job.owner for job in snapshot.running)
    chosen: dict[str, Preemption] = {}
    waiting = [job for job in snapshot.waiting if job.project_id in projects]
    waiting.sort(key=lambda job: _place(projects[job.project_id], devices[job.project_id], job))
    for job in waiting:
        if (job.not_before or 0) > snapshot.now or (job.interactive and job.owner in lanes):
            continue
        project = projects[job.project_id]
        if _is_limited(snapshot, project, job.owner, devices[project.id], keys[job.owner]):
            continue
        worker = next((one for one in free if one.takes(job.project_id, job.needs)), None)
        if worker is not None:
            free.remove(worker)
        else:
            victims = [
                victim
                for one in snapshot.workers
                if one.takes(job.project_id, job.needs)
                and (victim := by_worker.get(one.id))
                and victim.id not in chosen
                and _may_preempt(snapshot, job, victim, devices[victim.project_id] - 1)
            ]
            if not victims:
                continue
            # Lowest priority first; then the youngest job, because it loses the least work.
            victim = min(victims, key=lambda one: (one.priority, -one.claimed_at, one.id))
            chosen[victim.id] = Preemption(job_id=victim.id, reason=_reason(job, project, victim))
            devices[victim.project_id] -= 1
            keys[victim.owner] -= 1
        devices[project.id] += 1
        keys[job.owner] += 1
        if job.interactive:
            lanes.add(job.owner)
    return list(chosen.values())


def _is_limited(
    snapshot: Snapshot, project: Project, owner: str, of_project: int, of_key: int
) -> bool:
    """Return True if limits keep the project or the key from another running job. `of_project` and
    `of_key`: numbers of running jobs of the project and of the key."""
    limits = ((project.max_running_jobs, of_project), (snapshot.key_limits.get(owner), of_key))
    is_full = any(limit is not None and running >= limit for limit, running in limits)
    return is_full or not snapshot.over_device_hours.isdisjoint((project.id, owner))


def _frees_device(job: Running | None) -> bool:
    return job is not None and (job.yields or job.state == JobState.PAUSING)


def _may_preempt(snapshot: Snapshot, job: Waiting, victim: Running, left: int) -> bool:
    """Return True if the waiting job may pre-empt the running job `victim`. `left`: number of
    devices that the victim's project has without this job's device."""
    last = victim.preempted_at
    if victim.state != JobState.RUNNING or victim.yields or victim.interactive:
        return False
    if last is not None and snapshot.now - last < MIN_SECONDS_BETWEEN:
        return False
    project, other = snapshot.projects[job.project_id], snapshot.projects.get(victim.project_id)
    if other is None:
        return False
    devices = snapshot.devices()
    is_guaranteed = (
        project.id != other.id
        and devices[project.id] < project.guaranteed_devices
        and left >= other.guaranteed_devices
    )
    if not (job.interactive or job.priority > victim.priority or is_guaranteed):
        return False
    mine = devices[project.id] - (project.id == other.id)
    back = usage.removed(other.usage, snapshot.now, victim.charged_until)
    own = back if project.id == other.id else project.usage
    return place(project, mine, own, job) < place(other, left, back, victim)


def _place(project: Project, devices: int, job: Waiting) -> Place:
    return place(project, devices, project.usage, job)


def _reason(job: Waiting, project: Project, victim: Running) -> str:
    """Return the reason that the events of `victim` show; the reason does not name a job of another
    project."""
    own = job.project_id == victim.project_id
    if job.interactive:
        return (
            f"pre-empted by the interactive job {job.id}"
            if own
            else (f"pre-empted by an interactive job of the project {project.name}")
        )
    name = job.id if own else f"a job of the project {project.name}"
    if job.priority > 0:
        return f"pre-empted by {name} with priority {job.priority}"
    return f"pre-empted by {name}, which has fewer devices than its guarantee"
