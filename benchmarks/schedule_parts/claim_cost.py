"""Measure the cost of a claim with 10,000 queued jobs of 20 projects and 500 files.

A claim is the request by which a worker takes a job.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import event, insert, text

from tunesmith_schema import JobState, WorkerHello
from tunesmith_server import migrate
from tunesmith_server.core.database import Database
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import FileRow, JobRow, ProjectRow
from tunesmith_server.scheduling.eligibility import Abilities
from tunesmith_server.services import workers
from tunesmith_server.services.leasing import claims

from .figures import percentile
from .world import HYPERPARAMETERS, MODEL, RECIPE

QUEUED, PROJECTS, FILES, CLAIMS, WARM_UP = 10_000, 20, 500, 400, 20
WORKER = Abilities(models=frozenset({MODEL}), device_bytes=24 * 2**30)


def _is_labelled(number: int) -> bool:
    return number % PROJECTS == 0 or number // PROJECTS % 4 == 0


def fill(database: Database, queued: int = QUEUED) -> None:
    """Insert queued jobs. Every fourth job, and every job of one project, requires a label that the
    worker does not have."""
    rows = [
        {
            "id": f"ftjob-{number:024d}", "project_id": f"proj-{number % PROJECTS:02d}",
            "owner": f"key-{number % 100}", "state": JobState.QUEUED, "created_at": float(number),
            "queued_at": float(number), "model": MODEL, "seed": 0,
            "training_file": f"file-{number % FILES}", "recipe": RECIPE,
            "hyperparameters": HYPERPARAMETERS, "priority": number % 3,
            "worker_labels": "|gpu=h100|" if _is_labelled(number) else None,
            "method_name": "supervised",
        }
        for number in range(queued)
    ]  # fmt: skip
    with database.write.begin() as session:
        for number in range(PROJECTS):
            session.add(ProjectRow(id=f"proj-{number:02d}", name=f"p{number}", created_at=0.0))
        for number in range(FILES):
            session.add(
                FileRow(
                    id=f"file-{number}", created_at=0.0, filename="rows.jsonl", bytes=1,
                    purpose="fine-tune", sha256="0" * 64, status="processed",
                    project_id=f"proj-{number % PROJECTS:02d}",
                )
            )  # fmt: skip
        session.execute(insert(JobRow), rows)
    with database.engine.connect() as connection:
        connection.execute(text("ANALYZE"))
        connection.commit()


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of each claim, including the commit, without the first `WARM_UP` claims."""

    wall: list[float]
    cpu: list[float]
    """CPU time of each claim, in this thread and in the PostgreSQL server process of the
    connection."""
    warm_up: list[float]
    """CPU time of the first `WARM_UP` claims."""


def claim_costs(database: Database, settings: Settings, count: int = CLAIMS) -> Costs:
    """Measure `count` claims, each by a different worker."""
    wall, cpu = [], []
    for number in range(WARM_UP + count):
        body = WorkerHello(
            worker_id=f"w{number}", queue="train", host="h", device="gpu", version="1",
            models=sorted(WORKER.models), device_bytes=WORKER.device_bytes,
        )  # fmt: skip
        with database.write.begin() as session:
            workers.hello(session, body)
        server = _server_process(database)
        began, cpu_began = time.perf_counter(), time.thread_time() + _cpu_of(server)
        with database.write.begin() as session:
            claimed = claims.claim(session, settings, f"w{number}")
        wall.append(time.perf_counter() - began)
        cpu.append(time.thread_time() + _cpu_of(server) - cpu_began)
        assert claimed is not None, "jobs are waiting"
    return Costs(wall=wall[WARM_UP:], cpu=cpu[WARM_UP:], warm_up=cpu[:WARM_UP])


def _server_process(database: Database) -> int | None:
    """Return the id of the PostgreSQL server process that serves the pool's only connection.

    The query for the id adds a read transaction between two claims. This transaction does not
    distort the measurement, because the service also reads the database between claims.
    """
    if database.engine.dialect.name != "postgresql":
        return None
    with database.read() as session:
        number: int = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
    return number


def _cpu_of(process: int | None) -> float:
    if process is None:
        return 0.0
    nanoseconds = Path(f"/proc/{process}/schedstat").read_text().split()[0]
    return int(nanoseconds) / 1e9


def plan(database: Database) -> str:
    """Return the database's plan (EXPLAIN) for the query that chooses a job."""
    query = claims.next_claim(WORKER, (), skip_locked=False).params(worker="w0", host="h")
    text = query.compile(database.engine, compile_kwargs={"literal_binds": True})
    explain = "EXPLAIN" if database.engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
    with database.engine.connect() as connection:
        rows = connection.exec_driver_sql(f"{explain} {text}".replace("%", "%%")).all()
    return "\n".join(str(row[-1]) for row in rows)


def statements(database: Database, settings: Settings) -> list[str]:
    """Return the SQL statements of one claim."""
    sent: list[str] = []

    def note(*arguments: Any) -> None:  # Any: SQLAlchemy's own
        sent.append(arguments[2])

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        with database.write.begin() as session:
            assert claims.claim(session, settings, "w0") is not None
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
    return sent


def measure(url: str) -> dict[str, Any]:  # Any: JSON
    """Measure claims on an empty database."""
    migrate.upgrade(url)
    database = Database(url)
    try:
        fill(database)
        with tempfile.TemporaryDirectory(prefix="tunesmith-claims-") as folder:
            settings = Settings(data_dir=Path(folder), database_url=url, broker_url="memory://")
            costs = claim_costs(database, settings)
            sent = statements(database, settings)
        return {
            "database": database.engine.dialect.name,
            "queued": QUEUED,
            "claims": len(costs.wall),
            "statements": len(sent),
            "cpu_p50_ms": round(percentile(costs.cpu, 0.5) * 1000, 2),
            "cpu_p99_ms": round(percentile(costs.cpu, 0.99) * 1000, 2),
            "wall_p50_ms": round(percentile(costs.wall, 0.5) * 1000, 2),
            "wall_p99_ms": round(percentile(costs.wall, 0.99) * 1000, 2),
            "warm_up_cpu_max_ms": round(max(costs.warm_up) * 1000, 2),
            "plan": plan(database).splitlines(),
        }
    finally:
        database.dispose()
