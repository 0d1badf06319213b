"""Page of the workers and the queue, which shows why jobs wait."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.responses import Response

from tunesmith_server.portal import devices
from tunesmith_server.portal.tables import Cell, as_csv
from tunesmith_server.portal.visit import Page, Visit

_MOST_WAITING = 50
_MOST_ROWS = 1000
_HERE = "/portal/workers"
_DEVICES = (
    "worker", "host", "state", "reason", "job", "name", "owner", "step", "total_steps",
    "estimated_end", "device", "device_bytes", "base_models", "since", "last_report", "version",
)  # fmt: skip
_QUEUE = (
    "place", "job", "name", "owner", "project", "model", "priority", "code", "reason",
    "earliest_start", "estimated_start", "latest_start",
)  # fmt: skip


def show(visit: Visit) -> Response:
    return visit.show(
        "workers.html",
        devices=devices.read(visit, waiting=_MOST_WAITING),
        calls=devices.calls(),
        page_keys=(("j k", "Next or previous job"), ("o", "Open the job")),
    )


def devices_table(visit: Visit) -> Response:
    """Return the devices as CSV."""
    lanes = devices.read(visit, waiting=0).lanes
    return as_csv("workers", _DEVICES, map(_device, lanes))


def _device(lane: devices.Lane) -> list[Cell]:
    worker = lane.worker
    work: list[Cell] = [None] * 6
    if lane.work:
        job = lane.work.job
        work = [
            job.id, lane.work.name, lane.work.owner, job.step, job.total_steps, job.estimated_end,
        ]  # fmt: skip
    return [
        worker.id, worker.host, worker.state, worker.reason, *work, worker.device,
        worker.device_bytes, " ".join(worker.models), worker.since, worker.last_hello,
        worker.version,
    ]  # fmt: skip


def queue_table(visit: Visit) -> Response:
    """Return the first waiting jobs as CSV."""
    return as_csv("queue", _QUEUE, _waiting(visit))


def _waiting(visit: Visit) -> Iterator[list[Cell]]:
    for work in devices.read(visit, waiting=_MOST_ROWS).waiting:
        job = work.job
        because, start = job.waiting_because, job.estimated_start
        times = (start.earliest, start.at, start.latest) if start else (None, None, None)
        yield [
            job.queue_position, job.id, work.name, work.owner, job.project, job.model,
            job.priority, because.code if because else None, because.message if because else None,
            *times,
        ]  # fmt: skip


PAGES = [
    Page(path=_HERE, show=show, needs=devices.NEEDS),
    Page(path=f"{_HERE}.csv", show=devices_table, needs=devices.NEEDS),
    Page(path=f"{_HERE}/queue.csv", show=queue_table, needs=devices.NEEDS),
]
