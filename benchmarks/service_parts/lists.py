"""Compare the latency of every page of a list with the latency of page 1.

The lists are jobs, jobs with a metadata filter, and the events of a job. Page 1 is requested before
each page, so that other load on the machine affects both pages.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import insert, inspect, select
from sqlalchemy.orm import Mapper

from tunesmith_server.core.database import Base, Database
from tunesmith_server.models import EventRow, JobRow

from .installation import Installation, installation
from .process_use import cpu_seconds

JOBS_PATH = "fine_tuning/jobs"
_GROUPS = 5
"""The pages of a list are divided into this number of groups. The benchmark uses the median latency
of each group, because latencies of single requests vary too much."""


def measure(folder: Path) -> dict[str, Any]:
    """Measure lists of 10,000 jobs and of 10,000 events of one job, 20 per page."""
    with installation(folder) as service:
        return measure_on(service, rows=10_000, limit=20)


def measure_on(service: Installation, *, rows: int, limit: int) -> dict[str, Any]:
    """Return, for each list, the median latency of its pages in ms. For each fifth of the pages,
    also return their median latency divided by the median latency of page 1."""
    job_id = service.new_job(service.new_file())
    seed(service.database_url, job_id, rows)
    lists: dict[str, tuple[str, dict[str, Any]]] = {
        "jobs": (JOBS_PATH, {}),
        # One job in ten matches the filter.
        "jobs_of_one_team": (JOBS_PATH, {"metadata[team]": "team-3"}),
        "jobs_oldest_first": (JOBS_PATH, {"order": "asc"}),
        # Filters without a match read the whole index.
        "jobs_in_no_state": (JOBS_PATH, {"state": "paused"}),
        "jobs_without_this_text": (JOBS_PATH, {"text": "no job has this text"}),
        "events": (f"{JOBS_PATH}/{job_id}/events", {}),
    }
    figures = {name: _paged(service, *what, limit) for name, what in lists.items()}
    return {"rows": rows, "limit": limit, **figures}


def _paged(service: Installation, path: str, params: dict[str, Any], limit: int) -> dict[str, Any]:
    with service.user() as user:
        first, later, ids = [], [], set[str]()
        cursor: dict[str, str] = {}
        _timed(user, path, {**params, "limit": limit})  # opens the connection and fills the caches
        cpu = cpu_seconds(service.api_pid)
        while True:
            first.append(_timed(user, path, {**params, "limit": limit})[0])
            milliseconds, page = _timed(user, path, {**params, "limit": limit, **cursor})
            later.append(milliseconds)
            ids.update(item["id"] for item in page["data"])
            if not page["has_more"]:
                break
            cursor = {"after": page["last_id"]}
        cpu = cpu_seconds(service.api_pid) - cpu
    size = -(-len(later) // _GROUPS)
    starts = range(0, len(later), size)
    ratios = [
        statistics.median(later[at : at + size]) / statistics.median(first[at : at + size])
        for at in starts
    ]
    return {
        "pages": len(later),
        "items": len(ids),
        "first_page_ms": round(statistics.median(first), 2),
        "all_pages_ms": round(statistics.median(later), 2),
        "api_cpu_ms_per_call": round(cpu * 1000 / len(first + later), 2),
        "over_first_by_fifth": [round(ratio, 2) for ratio in ratios],
    }


def _timed(user: httpx.Client, path: str, params: dict[str, Any]) -> tuple[float, Any]:  # Any: JSON
    began = time.perf_counter()
    reply = user.get(path, params=params)
    milliseconds = (time.perf_counter() - began) * 1000
    return milliseconds, reply.raise_for_status().json()


def seed(database_url: str, job_id: str, rows: int) -> None:
    """Insert copies of a job until there are `rows` jobs. Each job belongs to one of ten teams,
    which its metadata contain. Also insert `rows` events of the job. The rows go directly into the
    database, because requests would take too long."""
    database = Database(database_url)
    with database.write.begin() as session:
        job = session.get_one(JobRow, job_id)
        job.labels = {"team": "team-0"}
        columns = _columns(job)
        copies = [
            columns
            | {
                "id": f"ftjob-{number:024x}",
                "created_at": job.created_at - number,
                "labels": {"team": f"team-{number % 10}"},
            }
            for number in range(1, rows)
        ]
        session.execute(insert(JobRow), copies)
        first = session.scalars(select(EventRow).where(EventRow.job_id == job_id)).first()
        assert first is not None, "every job has an event"
        about = _columns(first)
        session.execute(
            insert(EventRow),
            [about | {"seq": number} for number in range(job.last_seq + 1, rows + 1)],
        )
        job.last_seq = rows
    database.dispose()


def _columns(row: Base) -> dict[str, Any]:  # Any: values of columns
    mapper: Mapper[Any] = inspect(type(row))
    return {column.key: getattr(row, column.key) for column in mapper.column_attrs}
