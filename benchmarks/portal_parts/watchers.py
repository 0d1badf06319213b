"""Measure CPU and memory of the API with 200 streams at two events per second."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import select
from tests.browser.process import ApiProcess
from tests.browser.service import Service

from tunesmith_server.models import JobRow

from ..service_parts.process_use import watched
from .live import tell

BARS = {"core_share_above_idle": 0.1, "memory_growth_mb": 104.9}
"""Largest allowed results. The limit of the memory growth is 100 MiB (104.9 MB)."""
_JOIN_SECONDS = 4.0


def measure(
    service: Service, api: ApiProcess, cookie: str, *, watchers: int, seconds: int, first: int
) -> dict[str, Any]:  # Any: JSON
    """Measure the API while `watchers` clients read the portal's live stream. `cookie`: value of a
    session's Cookie header."""
    job_id = service.world.jobs["running"]
    with service.database.read() as session:
        head = session.scalar(select(JobRow.last_seq).where(JobRow.id == job_id))
    path = f"/portal/live?watch=list,{job_id}:{head}"
    idle = _share(api, seconds / 2)
    counts = [0] * watchers
    with watched(api.pid) as use:
        stop = threading.Event()
        clients = threading.Thread(
            target=lambda: asyncio.run(_watch(api.url, path, cookie, counts, stop))
        )
        clients.start()
        time.sleep(_JOIN_SECONDS)
        joined = list(counts)
        before, began = api.cpu_seconds(), time.monotonic()
        for number in range(2 * seconds):
            tell(service, job_id, first + number)
            time.sleep(max(0.0, began + (number + 1) / 2 - time.monotonic()))
        share = (api.cpu_seconds() - before) / (time.monotonic() - began)
        time.sleep(1)
        stop.set()
        clients.join()
    received = [after - early for after, early in zip(counts, joined, strict=True)]
    return {
        "watchers": watchers,
        "events": 2 * seconds,
        "least_frames": min(received),
        "core_share_idle": round(idle, 3),
        "core_share_above_idle": round(share - idle, 3),
        "memory_growth_mb": use.rss_growth_mb,
    }


def _share(api: ApiProcess, seconds: float) -> float:
    before, began = api.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return (api.cpu_seconds() - before) / (time.monotonic() - began)


async def _watch(
    url: str, path: str, cookie: str, counts: list[int], stop: threading.Event
) -> None:
    tasks = [asyncio.create_task(_one(url, path, cookie, counts, n)) for n in range(len(counts))]
    while not stop.is_set():
        await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _one(url: str, path: str, cookie: str, counts: list[int], number: int) -> None:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"GET {path} HTTP/1.1\r\nhost: {address.netloc}\r\ncookie: {cookie}\r\n"
    writer.write(f"{head}accept: text/event-stream\r\n\r\n".encode())
    try:
        status = await reader.readline()
        if b" 200 " not in status:
            raise ConnectionError(f"the stream was refused: {status!r}")
        while line := await reader.readline():
            counts[number] += line.startswith(b"event: event")
    finally:
        writer.close()
