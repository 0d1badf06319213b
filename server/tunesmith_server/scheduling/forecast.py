"""Forecast of the queue: in which order and when waiting jobs start, if nothing new arrives.

The forecast plays the queue forward by the rules of the claim. Running jobs end when their steps
have taken as long as so far; waiting jobs take as long as similar jobs have (durations.py).
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass

from . import usage
from .durations import Durations
from .snapshot import Project, Running, Snapshot, Waiting, Worker, place


@dataclass(frozen=True, kw_only=True)
class Start:
    """Expected start of a waiting job."""

    position: int
    """1 is the next job that starts."""
    at: float
    worker_id: str


class _Ledger:
    """Usage of the projects during the forecast, charged as the claim and the reports do."""

    def __init__(self, projects: dict[str, Project]) -> None:
        self._usage = {project.id: project.usage for project in projects.values()}
        self._charged: dict[str, tuple[str, float]] = {}
        """Project of each running job, and the time until which it is charged."""

    def of(self, project_id: str) -> float | None:
        return self._usage[project_id]

    def begin(self, job_id: str, project_id: str, now: float) -> None:
        self._charged[job_id] = (project_id, now)
        self.advance(now)

    def hold(self, job: Running) -> None:
        self._charged[job.id] = (job.project_id, job.charged_until)

    def advance(self, now: float) -> None:
        for job_id, (project_id, until) in self._charged.items():
            if until <= now:
                ahead = now + usage.CHARGE_AHEAD_SECONDS
                self._usage[project_id] = usage.added(self._usage[project_id], until, ahead)
                self._charged[job_id] = (project_id, ahead)

    def end(self, job_id: str, now: float) -> None:
        project_id, until = self._charged.pop(job_id)
        spent = usage.added(self._usage[project_id], until, now)
        self._usage[project_id] = usage.removed(spent, now, until)


def play(snapshot: Snapshot, durations: Durations) -> dict[str, Start]:
    """Return the expected start of each waiting job that some live worker can run."""
    return _Forecast(snapshot, durations).play()


class _Forecast:
    def __init__(self, snapshot: Snapshot, durations: Durations) -> None:
        self._snapshot, self._durations = snapshot, durations
        self._projects = dict(snapshot.projects)
        self._ledger = _Ledger(self._projects)
        self._devices: Counter[str] = Counter()
        self._keys: Counter[str] = Counter()
        self._lanes: set[str] = set()
        self._queues: dict[str, list[Waiting]] = defaultdict(list)
        for job in snapshot.waiting:
            if job.project_id in self._projects:
                self._queues[job.project_id].append(job)
        self._events: list[tuple[float, int, str]] = []
        """Times at which something may start: the time, a number, and the worker's id or ''."""
        self._held: dict[str, Waiting] = {}
        """Running job of each busy worker."""
        self._number = 0

    def play(self) -> dict[str, Start]:
        now, starts = self._snapshot.now, dict[str, Start]()
        workers = {worker.id: worker for worker in self._snapshot.workers}
        free = {worker.id for worker in self._snapshot.free_workers() if not worker.not_ready}
        for held in self._snapshot.running:
            if held.project_id in self._projects:
                self._hold(held)
                self._ledger.hold(held)
                self._wake(now + self._durations.remaining(held, now), held.worker_id or "")
        for job in self._snapshot.waiting:
            if (job.not_before or 0) > now:
                self._wake(job.not_before or 0, "")
        while True:
            self._ledger.advance(now)
            for worker_id in sorted(free):
                found = self._next_of(workers[worker_id], now)
                if found is None:
                    continue
                free.remove(worker_id)
                starts[found.id] = Start(position=len(starts) + 1, at=now, worker_id=worker_id)
                self._queues[found.project_id].remove(found)
                self._hold(found, worker_id)
                self._ledger.begin(found.id, found.project_id, now)
                self._wake(now + self._durations.expected(found), worker_id)
            if not self._events or not any(self._queues.values()):
                return starts
            now, _, worker_id = heapq.heappop(self._events)
            if worker_id:
                self._free(worker_id, now)
                if worker_id in workers and not workers[worker_id].not_ready:
                    free.add(worker_id)

    def _next_of(self, worker: Worker, now: float) -> Waiting | None:
        """Return the job that the worker would claim."""
        heads = []
        for project_id, queue in self._queues.items():
            project = self._projects[project_id]
            limit = project.max_running_jobs
            is_full = limit is not None and self._devices[project_id] >= limit
            if not queue or is_full or project_id in self._snapshot.over_device_hours:
                continue
            head = next((job for job in queue if self._may_start(worker, job, now)), None)
            if head is not None:
                where = place(project, self._devices[project_id], self._ledger.of(project_id), head)
                heads.append((where, head))
        return min(heads, key=lambda one: one[0])[1] if heads else None

    def _may_start(self, worker: Worker, job: Waiting, now: float) -> bool:
        limit = self._snapshot.key_limits.get(job.owner)
        return (
            (job.not_before or 0) <= now
            and not (job.interactive and job.owner in self._lanes)
            and (limit is None or self._keys[job.owner] < limit)
            and job.owner not in self._snapshot.over_device_hours
            and worker.takes(job.project_id, job.needs)
        )

    def _hold(self, job: Waiting, worker_id: str = "") -> None:
        holder = job.worker_id if isinstance(job, Running) else worker_id
        self._held[holder or job.id] = job
        self._devices[job.project_id] += 1
        self._keys[job.owner] += 1
        if job.interactive:
            self._lanes.add(job.owner)

    def _free(self, worker_id: str, now: float) -> None:
        job = self._held.pop(worker_id, None)
        if job is None:
            return
        self._devices[job.project_id] -= 1
        self._keys[job.owner] -= 1
        self._lanes.discard(job.owner if job.interactive else "")
        self._ledger.end(job.id, now)

    def _wake(self, at: float, worker_id: str) -> None:
        self._number += 1
        heapq.heappush(self._events, (at, self._number, worker_id))
