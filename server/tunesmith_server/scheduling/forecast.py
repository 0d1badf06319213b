"""Forecast of the queue: in which order and when the waiting jobs start, if no new jobs are
created.

The forecast simulates the queue with the rules of a claim. The forecast assumes that a running job
keeps its mean time per step, and that a waiting job takes as long as similar jobs took
(durations.py).
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from . import usage
from .durations import Durations
from .eligibility import Needs
from .snapshot import Project, Running, Snapshot, Waiting, Worker, place

EVALUATION_SECONDS = 60.0
"""Expected remaining time of a running evaluation."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Expected start of a waiting job."""

    position: int
    """Position in the queue; the next job that starts has position 1."""
    at: float
    worker_id: str


class _Ledger:
    """Simulated usage of the projects during the forecast.

    The forecast charges a project at the times at which claims and reports would charge it.
    """

    def __init__(self, projects: dict[str, Project]) -> None:
        self._usage = {project.id: project.usage for project in projects.values()}
        self._charged: dict[str, tuple[str, float]] = {}

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


Kind = tuple[Needs, bool, str]
"""Key of a group of equal jobs of one project: the needs of the jobs, True for interactive jobs,
and the id of their API key. The id of the API key is empty unless the key has a limit or the jobs
are interactive."""


class _Queue:
    """Waiting jobs of one project, in groups of equal jobs (`Kind`).

    The jobs of a group are in the order of the queue.
    """

    def __init__(self) -> None:
        self.kinds: dict[Kind, deque[tuple[int, Waiting]]] = {}
        self._number = 0

    def append(self, kind: Kind, job: Waiting) -> None:
        self._number += 1
        self.kinds.setdefault(kind, deque()).append((self._number, job))

    def first(self, may_start: Callable[[Waiting], bool]) -> tuple[Kind, Waiting] | None:
        """Return the first job in the queue whose kind may start."""
        heads = [(*jobs[0], kind) for kind, jobs in self.kinds.items() if may_start(jobs[0][1])]
        if not heads:
            return None
        _, job, kind = min(heads, key=lambda head: head[0])
        return kind, job

    def pop(self, kind: Kind) -> None:
        self.kinds[kind].popleft()
        if not self.kinds[kind]:
            del self.kinds[kind]


class _Forecast:
    def __init__(self, snapshot: Snapshot, durations: Durations) -> None:
        self._snapshot, self._durations = snapshot, durations
        self._projects = dict(snapshot.projects)
        self._ledger = _Ledger(self._projects)
        self._devices: Counter[str] = Counter()
        self._keys: Counter[str] = Counter()
        self._lanes: set[str] = set()
        self._queues: dict[str, _Queue] = {}
        self._delayed: list[Waiting] = []
        self._events: list[tuple[float, int, str]] = []
        """Times at which a job may start. Each entry has the time, a number that makes entries
        unique, and the id of the worker that becomes free; the id is empty if a retry delay
        ends."""
        self._held: dict[str, Waiting] = {}
        """Running job of each busy worker; the keys are worker ids."""
        self._takes: dict[tuple[str, str, Needs], bool] = {}
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
        for worker_id in self._snapshot.evaluating:
            self._wake(now + EVALUATION_SECONDS, worker_id)
        for job in self._snapshot.waiting:
            self._enqueue(job, now)
        while True:
            self._ledger.advance(now)
            for worker_id in sorted(free):
                found = self._take_next(workers[worker_id])
                if found is None:
                    continue
                free.remove(worker_id)
                starts[found.id] = Start(position=len(starts) + 1, at=now, worker_id=worker_id)
                self._hold(found, worker_id)
                self._ledger.begin(found.id, found.project_id, now)
                self._wake(now + self._durations.expected(found), worker_id)
            if not self._events or not (self._queues or self._delayed):
                return starts
            now, _, worker_id = heapq.heappop(self._events)
            if worker_id:
                self._free(worker_id, now)
                if worker_id in workers and not workers[worker_id].not_ready:
                    free.add(worker_id)
            else:
                delayed, self._delayed = self._delayed, []
                for job in delayed:
                    self._enqueue(job, now)

    def _enqueue(self, job: Waiting, now: float) -> None:
        if job.project_id not in self._projects or not any(
            self._worker_takes(worker, job) for worker in self._snapshot.workers
        ):
            return
        if (job.not_before or 0) > now:
            self._delayed.append(job)
            self._wake(job.not_before or 0, "")
            return
        is_alone = job.interactive or job.owner in self._snapshot.key_limits
        kind = (job.needs, job.interactive, job.owner if is_alone else "")
        self._queues.setdefault(job.project_id, _Queue()).append(kind, job)

    def _worker_takes(self, worker: Worker, job: Waiting) -> bool:
        key = (worker.id, job.project_id, job.needs)
        if key not in self._takes:
            self._takes[key] = worker.takes(job.project_id, job.needs)
        return self._takes[key]

    def _take_next(self, worker: Worker) -> Waiting | None:
        heads = []
        for project_id, queue in self._queues.items():
            project = self._projects[project_id]
            limit, devices = project.max_running_jobs, self._devices[project_id]
            is_full = limit is not None and devices >= limit
            if is_full or project_id in self._snapshot.over_device_hours:
                continue
            head = queue.first(lambda job: self._may_start(worker, job))
            if head is not None:
                kind, job = head
                where = place(project, devices, self._ledger.of(project_id), job)
                heads.append((where, kind, job))
        if not heads:
            return None
        _, kind, job = min(heads, key=lambda head: head[0])
        self._queues[job.project_id].pop(kind)
        if not self._queues[job.project_id].kinds:
            del self._queues[job.project_id]
        return job

    def _may_start(self, worker: Worker, job: Waiting) -> bool:
        limit = self._snapshot.key_limits.get(job.owner)
        return (
            not (job.interactive and job.owner in self._lanes)
            and (limit is None or self._keys[job.owner] < limit)
            and job.owner not in self._snapshot.over_device_hours
            and self._worker_takes(worker, job)
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
