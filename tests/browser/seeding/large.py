"""A long-used service: thousands of jobs and models, a run of very many steps, many samples."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert, inspect
from sqlalchemy.orm import Mapper

from tunesmith_schema import JobState
from tunesmith_server.core.database import Base, Database
from tunesmith_server.core.storage import Storage
from tunesmith_server.models import AdapterRow, JobRow

from . import curves, history
from .world import World

_STATES = (JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, kw_only=True)
class Large:
    """Sizes of a long-used service."""

    jobs: int = 10_000
    steps: int = 100_000
    """Steps of one supervised job."""
    models: int = 5_000
    """Most tuned models, of the copies that succeeded."""
    samples: int = 10_000
    """Samples of one reinforcement job, 100 a step."""


def fill_large(database: Database, storage: Storage, world: World, size: Large) -> None:
    """Add copies of the world's jobs until there are `size.jobs`; make the steps of its job
    `running` and the samples of its job `reinforcement` as many as `size` says."""
    with database.write.begin() as session:
        rows = [session.get_one(JobRow, world.jobs[what]) for what in ("succeeded", "reinforced")]
        patterns = [_columns(row) for row in rows]
        copies = []
        for number in range(1, size.jobs - len(world.jobs) + 1):
            columns = patterns[number % len(patterns)]
            created = columns["created_at"] - 600 * number
            copies.append(
                columns
                | {
                    "id": f"ftjob-{number:024x}", "state": _STATES[number % len(_STATES)],
                    "created_at": created, "queued_at": created, "started_at": created + 4,
                    "finished_at": created + 500, "suffix": f"run-{number}",
                    "labels": {"team": f"team-{number % 10}"},
                    "fine_tuned_model": f"ft:base-{number % 20}:default:run-{number}:{number}",
                    "adapter_id": f"adp-{number:024x}",
                }
            )  # fmt: skip
        if copies:
            session.execute(insert(JobRow), copies)
            adapter = session.get_one(AdapterRow, rows[0].adapter_id)
            session.execute(insert(AdapterRow), _models(adapter, copies, size.models))
        _lengthen(session.get_one(JobRow, world.jobs["running"]), size.steps, session)
        job, steps = session.get_one(JobRow, world.jobs["reinforcement"]), size.samples // 100
        history.samples(session, storage, job, range(1001, 1001 + steps), at=time.time(), groups=25)


def _models(row: AdapterRow, jobs: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return the tuned models of jobs that succeeded. Any: values of columns."""
    common = _columns(row)
    return [
        common
        | {
            "id": job["adapter_id"], "job_id": job["id"], "model": job["fine_tuned_model"],
            "base_model": job["fine_tuned_model"].split(":")[1],
            "created_at": job["finished_at"],
        }
        for job in jobs
        if job["state"] == JobState.SUCCEEDED
    ][:most]  # fmt: skip


def _lengthen(job: JobRow, steps: int, session: Any) -> None:
    """Add steps after the job's last step. Any: Session."""
    first, at = job.step, time.time()
    job.total_steps = 2 * steps
    more = (
        (step, values)
        for step, values in curves.supervised(steps, 2 * steps, job.seed)
        if step > first
    )
    history.train(session, job, more, at - 0.1 * steps, 0.1)


def _columns(row: Base) -> dict[str, Any]:  # Any: values of columns
    mapper: Mapper[Any] = inspect(type(row))
    return {column.key: getattr(row, column.key) for column in mapper.column_attrs}
