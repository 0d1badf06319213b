"""Measure the delivery of one job's events to many watchers over server-sent events (SSE)."""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx

from .connections import Target
from .installation import BASE_MODEL, Installation, installation
from .process_use import watched
from .watchers import SENT, watch


def measure(folder: Path) -> dict[str, Any]:
    """Measure 500 watchers at 10 events a second for 30 s; 50 of the watchers reconnect."""
    with installation(folder) as service:
        return measure_on(
            service, watchers=500, reconnecting=50, events_per_second=10, seconds=30, join_seconds=8
        )


def measure_on(
    service: Installation,
    *,
    watchers: int,
    reconnecting: int,
    events_per_second: int,
    seconds: int,
    join_seconds: float,
) -> dict[str, Any]:
    """Count events and measure the delay from sending a report to delivering its events.

    The report starts `join_seconds` after the watchers. A late watcher also receives the events
    from before its connection.
    """
    with service.worker() as worker:
        service.new_job(service.new_file())
        claim = _claim(worker)
        target = Target(host=service.host, port=service.port, key=service.api_key)
        # Watchers reconnect during the live events.
        leave_after = 10 + events_per_second * seconds // 3
        with (
            watched(service.api_pid) as use,
            ProcessPoolExecutor(1, get_context("spawn")) as client,
        ):
            watching = client.submit(
                watch, target, claim["job_id"], watchers, reconnecting, leave_after
            )
            time.sleep(join_seconds)
            _report(worker, claim, events_per_second, seconds)
            figures: dict[str, Any] = dict(watching.result())
    return {
        **figures,
        "events_per_second": events_per_second,
        "api_cpu_seconds": use.cpu_seconds,
        "api_rss_growth_mb": use.rss_growth_mb,
        "api_wall_seconds": join_seconds + seconds,
    }


def _claim(worker: httpx.Client) -> dict[str, Any]:
    hello = {"worker_id": "w", "queue": "train", "host": "h", "device": "cpu", "version": "0"}
    worker.post("workers/hello", json={**hello, "models": [BASE_MODEL]}).raise_for_status()
    claim: dict[str, Any] = (
        worker.post("jobs/claim", json={"worker_id": "w"}).raise_for_status().json()
    )
    return claim


def _report(
    worker: httpx.Client, claim: dict[str, Any], events_per_second: int, seconds: int
) -> None:
    """Send metric events at a fixed rate, in one report per second. Then end the watched job."""
    address = f"jobs/{claim['job_id']}/report"
    about = {"worker_id": "w", "attempt": claim["attempt"], "fence": claim["fence"]}
    number, began = 0, time.monotonic()
    for second in range(seconds):
        time.sleep(max(0.0, began + second - time.monotonic()))
        batch = []
        for _ in range(events_per_second):
            number += 1
            batch.append(_metrics(number))
        worker.post(address, json={**about, "events": batch}).raise_for_status()
    worker.post(address, json={**about, "outcome": {"state": "cancelled"}}).raise_for_status()


def _metrics(number: int) -> dict[str, Any]:
    now = time.time()
    data = {"step": number, "train_loss": 1.5, "learning_rate": 2e-4, "grad_norm": 0.7, SENT: now}
    return {
        "source_seq": number,
        "created_at": now,
        "kind": "metrics",
        "message": f"step {number}: train_loss 1.5000",
        "data": data,
    }
