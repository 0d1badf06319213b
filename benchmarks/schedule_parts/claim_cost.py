"""Cost of a claim with 10,000 queued jobs of 20 projects."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy import insert, text

from tunesmith_schema import JobState, WorkerHello
from tunesmith_server import migrate
from tunesmith_server.core.database import Database
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import FileRow, JobRow, ProjectRow
from tunesmith_server.scheduling import order
from tunesmith_server.scheduling.eligibility import Abilities
from tunesmith_server.services import leases, workers

from .figures import percentile
from .world import HYPERPARAMETERS, MODEL, RECIPE

QUEUED, PROJECTS, CLAIMS = 10_000, 20, 200
WORKER = Abilities(models=frozenset({MODEL}), device_bytes=24 * 2**30)


def _is_labelled(number: int) -> bool:
    return number % PROJECTS == 0 or number // PROJECTS % 4 == 0


def fill(database: Database, queued: int = QUEUED) -> None:
    """Insert queued jobs. The worker lacks the label of each fourth job, and of all jobs of one
    project."""
    rows = [
        {
            "id": f"ftjob-{number:024d}", "project_id": f"proj-{number % PROJECTS:02d}",
            "owner": f"key-{number % 100}", "state": JobState.QUEUED, "created_at": float(number),
            "queued_at": float(number), "model": MODEL, "training_file": "file-1", "seed": 0,
            "recipe": RECIPE, "hyperparameters": HYPERPARAMETERS, "priority": number % 3,
            "worker_labels": "|gpu=h100|" if _is_labelled(number) else None,
            "method_name": "supervised",
        }
        for number in range(queued)
    ]  # fmt: skip
    with database.write.begin() as session:
        for number in range(PROJECTS):
            session.add(ProjectRow(id=f"proj-{number:02d}", name=f"p{number}", created_at=0.0))
        session.add(
            FileRow(
                id="file-1", created_at=0.0, filename="rows.jsonl", purpose="fine-tune", bytes=1,
                sha256="0" * 64, status="processed", project_id="proj-00",
            )
        )  # fmt: skip
        session.execute(insert(JobRow), rows)
    with database.engine.connect() as connection:
        connection.execute(text("ANALYZE"))
        connection.commit()


def claim_times(
    database: Database, settings: Settings, count: int = CLAIMS
) -> tuple[list[float], list[float]]:
    """Return the wall seconds and CPU seconds of `count` claims, each by another worker. The
    times include the commit, but not the CPU time of PostgreSQL's processes."""
    wall, cpu = [], []
    for number in range(count):
        body = WorkerHello(
            worker_id=f"w{number}", queue="train", host="h", device="gpu", version="1",
            models=sorted(WORKER.models), device_bytes=WORKER.device_bytes,
        )  # fmt: skip
        with database.write.begin() as session:
            workers.hello(session, body)
        began, cpu_began = time.perf_counter(), time.thread_time()
        with database.write.begin() as session:
            claimed = leases.claim(session, settings, f"w{number}")
        wall.append(time.perf_counter() - began)
        cpu.append(time.thread_time() - cpu_began)
        assert claimed is not None, "jobs are waiting"
    return wall, cpu


def query_times(database: Database, count: int = CLAIMS) -> list[float]:
    """Return wall seconds of the query that chooses a job, the most expensive query of a claim."""
    times = []
    with database.read() as session:
        for _ in range(count):
            began = time.perf_counter()
            session.execute(order.next_job(WORKER)).first()
            times.append(time.perf_counter() - began)
    return times


def plan(database: Database) -> str:
    """Return how the database executes the query of a claim."""
    query = order.next_job(WORKER).compile(database.engine, compile_kwargs={"literal_binds": True})
    explain = "EXPLAIN" if database.engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
    with database.engine.connect() as connection:
        rows = connection.exec_driver_sql(f"{explain} {query}".replace("%", "%%")).all()
    return "\n".join(str(row[-1]) for row in rows)


def measure(url: str | None = None) -> dict[str, Any]:  # Any: JSON
    """Measure claims on an empty database; by default on a new SQLite file."""
    with tempfile.TemporaryDirectory(prefix="tunesmith-claims-") as folder:
        url = url or f"sqlite:///{Path(folder) / 'tunesmith.db'}"
        migrate.upgrade(url)
        settings = Settings(data_dir=Path(folder), database_url=url, broker_url="memory://")
        database = Database(url)
        try:
            fill(database)
            wall, cpu = claim_times(database, settings)
            return {
                "database": database.engine.dialect.name,
                "queued": QUEUED,
                "claims": len(wall),
                "p50_ms": round(percentile(wall, 0.5) * 1000, 2),
                "p99_ms": round(percentile(wall, 0.99) * 1000, 2),
                "cpu_p50_ms": round(percentile(cpu, 0.5) * 1000, 2),
                "cpu_p99_ms": round(percentile(cpu, 0.99) * 1000, 2),
                "query_p99_ms": round(percentile(query_times(database), 0.99) * 1000, 2),
                "plan": plan(database).splitlines(),
            }
        finally:
            database.dispose()
