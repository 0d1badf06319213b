"""View of the queue for people: expected starts and reasons.

A view has all waiting jobs. The view of a long queue is slow to compute, so it is reused for some
time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from tunesmith_schema import EstimatedStart, WaitingBecause
from tunesmith_server.core.database import Database

from . import durations, forecast, reasons, snapshot
from .durations import Durations
from .forecast import Start
from .snapshot import Snapshot, Waiting

FAST, SLOW = 0.6, 1.7
"""The earliest expected start assumes that a job takes FAST times as long as similar jobs took, and
the latest expected start assumes that it takes SLOW times as long."""
LONG_QUEUE = 200
"""Minimum number of waiting jobs for which a view is reused."""
KEEP_FACTOR = 10.0
"""Time for which a view is reused, as a multiple of the time to compute it.

The computation of views therefore uses at most a tenth of a CPU core.
"""


@dataclass(frozen=True, kw_only=True)
class View:
    """The queue with its forecast."""

    snapshot: Snapshot
    durations: Durations
    starts: Mapping[str, Start]
    early: Mapping[str, Start]
    late: Mapping[str, Start]

    def job(self, job_id: str) -> Waiting | None:
        return next((job for job in self.snapshot.waiting if job.id == job_id), None)

    def position(self, job: Waiting) -> int | None:
        """Return the job's position in the queue; jobs that no worker can run have the last
        positions."""
        start = self.starts.get(job.id)
        return start.position if start else None

    def because(self, job: Waiting) -> WaitingBecause:
        return reasons.because(self.snapshot, job, self.position(job))

    def estimated_start(self, job: Waiting) -> EstimatedStart | None:
        at = self.starts.get(job.id)
        if at is None:
            return None
        others = [view[job.id].at for view in (self.early, self.late) if job.id in view]
        times = [at.at, *others]
        return EstimatedStart(at=int(at.at), earliest=int(min(times)), latest=int(max(times)))


def compute(seen: Snapshot, examples: list[durations.Example]) -> View:
    """Compute the expected starts and the reasons from a snapshot of the queue."""
    plays = {
        factor: forecast.play(seen, Durations(examples, factor=factor))
        for factor in (1.0, FAST, SLOW)
    }
    return View(
        snapshot=seen,
        durations=Durations(examples),
        starts=plays[1.0],
        early=plays[FAST],
        late=plays[SLOW],
    )


class QueueView:
    """The newest view of the queue, over all projects."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._view: View | None = None
        self._valid_until = 0.0

    def get(self) -> View:
        with self._lock:
            if self._view is not None and time.monotonic() < self._valid_until:
                return self._view
            began = time.monotonic()
            with self._database.read() as session:
                seen, examples = snapshot.read(session), durations.examples(session)
            self._view = compute(seen, examples)
            took = time.monotonic() - began
            if len(seen.waiting) >= LONG_QUEUE:
                self._valid_until = began + took * KEEP_FACTOR
            return self._view
