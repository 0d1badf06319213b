"""Claimers that stall: each job ends once, and writers that lost their lease are refused."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from benchmarks.schedule_parts.world import FILE, HYPERPARAMETERS, MODEL, RECIPE, STEPS, NoWakeUps
from sqlalchemy import func, insert, select

from tunesmith_schema import Claim, ErrorCode, JobState, Outcome, WorkerHello
from tunesmith_server.core.database import Database
from tunesmith_server.core.errors import Conflict
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import FileRow, JobRow, ProjectRow
from tunesmith_server.services import workers
from tunesmith_server.services.leasing import claims, leases
from tunesmith_server.services.leasing.received import ReceivedReport

PROJECTS = 5
STALLED_SHARE = 0.05
"""Share of the claims whose worker stalls for longer than its lease."""
JANITOR_SECONDS = 0.2


class Stalls:
    """Jobs in a database, and the workers that claim them. `run` returns the counts."""

    def __init__(self, database: Database, settings: Settings, *, jobs: int, seed: int = 1) -> None:
        """`settings` allow a lost attempt to be repeated at once, and any number of them."""
        self._database, self._settings = database, settings
        self._num_jobs, self._seed = jobs, seed
        self._lock, self._over = threading.Lock(), threading.Event()
        self._claims: Counter[tuple[str, int]] = Counter()
        self._ends: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()

    def run(self, claimers: int) -> dict[str, Any]:  # Any: JSON
        """Let `claimers` threads work until all jobs have ended. Raises the errors of threads."""
        self._insert()
        began = time.perf_counter()
        with ThreadPoolExecutor(claimers + 1) as pool:
            janitor = pool.submit(self._take_back)
            working = [pool.submit(self._work, number) for number in range(claimers)]
            try:
                for one in as_completed(working):
                    one.result()
            finally:
                self._over.set()
            janitor.result()
        with self._database.read() as session:
            states = session.execute(select(JobRow.state, func.count()).group_by(JobRow.state))
            by_state = {str(state): count for state, count in states}
        return {
            "database": self._database.engine.dialect.name,
            "claimers": claimers,
            "jobs": self._num_jobs,
            "claims": self._claims.total(),
            "claimed_twice": sum(count > 1 for count in self._claims.values()),
            "ended_twice": sum(count > 1 for count in self._ends.values()),
            "lost": self._num_jobs - len(self._ends),
            "states": by_state,
            "stalls": self._counts["stalls"],
            "refused_reports": self._counts["refused"],
            "seconds": round(time.perf_counter() - began, 1),
        }

    def _insert(self) -> None:
        rows = [
            {
                "id": f"ftjob-{number:010d}{0:014d}", "project_id": f"proj-{number % PROJECTS}",
                "owner": f"key-{number % 7}", "state": JobState.QUEUED, "created_at": float(number),
                "queued_at": float(number), "model": MODEL, "training_file": "file-1", "seed": 0,
                "recipe": RECIPE, "hyperparameters": HYPERPARAMETERS, "method_name": "supervised",
            }
            for number in range(self._num_jobs)
        ]  # fmt: skip
        with self._database.write.begin() as session:
            for number in range(PROJECTS):
                session.add(ProjectRow(id=f"proj-{number}", name=f"p{number}", created_at=0.0))
            session.add(
                FileRow(
                    id="file-1", created_at=0.0, filename="rows.jsonl", purpose="fine-tune",
                    bytes=1, sha256="0" * 64, status="processed", project_id="proj-0",
                )
            )  # fmt: skip
            session.execute(insert(JobRow), rows)

    def _work(self, number: int) -> None:
        worker_id, draw = f"train@{number:02d}", random.Random(self._seed * 1000 + number)
        body = WorkerHello(
            worker_id=worker_id, queue="train", host="host", device="gpu", version="1",
            models=[MODEL],
        )  # fmt: skip
        with self._database.write.begin() as session:
            workers.hello(session, body)
        while len(self._ends) < self._num_jobs and not self._over.is_set():
            with self._database.write.begin() as session:
                claim = claims.claim(session, self._settings, worker_id)
            if claim is None:
                time.sleep(0.05)  # stalled workers hold the last jobs
                continue
            with self._lock:
                self._claims[claim.job_id, claim.fence] += 1
            time.sleep(draw.uniform(0.0, 0.02))
            if draw.random() < STALLED_SHARE:
                self._counts["stalls"] += 1
                time.sleep(self._settings.lease_seconds * draw.uniform(1.2, 1.6))
            self._end(claim, worker_id)

    def _end(self, claim: Claim, worker_id: str) -> None:
        outcome = Outcome(
            state="succeeded", kind="lora", step=STEPS, trained_tokens=1, files=[FILE]
        )
        report = ReceivedReport(
            worker_id=worker_id, attempt=claim.attempt, fence=claim.fence, phase="train",
            events=[], outcome=outcome,
        )  # fmt: skip
        try:
            with self._database.write.begin() as session:
                leases.report(session, self._settings, NoWakeUps(), claim.job_id, report)
        except Conflict as error:
            if error.code != ErrorCode.FENCED_OUT:
                raise
            with self._lock:
                self._counts["refused"] += 1
            return
        with self._lock:
            self._ends[claim.job_id] += 1

    def _take_back(self) -> None:
        while not self._over.wait(JANITOR_SECONDS):
            with self._database.write.begin() as session:
                leases.take_back_expired(session, self._settings)
