"""Requests at a fixed rate (open loop), sent from a separate process.

A request's latency is measured from its planned time. If the server stalls, the latency of every
request that was planned during the stall includes the delay.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import uvloop

from .connections import Connection, Target

CONNECTIONS = 16
LEAD_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Load:
    """Stream of requests at a fixed rate. Several streams can run at the same time."""

    name: str
    method: str
    path: str
    body: dict[str, Any] | None = None  # Any: JSON
    per_second: float
    seconds: float


def run(target: Target, loads: Sequence[Load]) -> dict[str, dict[str, float]]:
    """Run the loads.

    Return latencies in ms, keyed by the name of the load. Raises RuntimeError if a response has a
    status other than 200.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as client:
        return client.submit(_run_here, target, loads).result()


def _run_here(target: Target, loads: Sequence[Load]) -> dict[str, dict[str, float]]:
    gc.freeze()
    return uvloop.run(_run_all(target, loads))


async def _run_all(target: Target, loads: Sequence[Load]) -> dict[str, dict[str, float]]:
    figures = await asyncio.gather(*(_run_one(target, load) for load in loads))
    return {load.name: figure for load, figure in zip(loads, figures, strict=True)}


async def _run_one(target: Target, load: Load) -> dict[str, float]:
    idle: asyncio.Queue[Connection] = asyncio.Queue()  # FIFO: no connection is idle for long
    for _ in range(CONNECTIONS):
        connection = Connection(target)
        await connection.open()
        idle.put_nowait(connection)
    latencies, lateness, statuses = [], [], []

    async def send(planned: float) -> None:
        lateness.append(time.perf_counter() - planned)
        connection = await idle.get()
        headers = {"idempotency-key": secrets.token_hex(16)} if load.body else {}
        status, _ = await connection.ask(load.method, load.path, load.body, headers)
        idle.put_nowait(connection)
        latencies.append(time.perf_counter() - planned)
        statuses.append(status)

    began = time.perf_counter() + LEAD_SECONDS
    tasks = []
    for number in range(round(load.per_second * load.seconds)):
        planned = began + number / load.per_second
        if (wait := planned - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(send(planned)))
    await asyncio.gather(*tasks)
    while not idle.empty():
        idle.get_nowait().close()
    if bad := [status for status in statuses if status != 200]:
        raise RuntimeError(f"{len(bad)} of {len(statuses)} {load.name} returned {set(bad)}")
    return {
        "requests": len(latencies),
        "per_second": load.per_second,
        **{f"{name}_ms": value for name, value in spread(latencies).items()},
        **{f"client_late_{name}_ms": value for name, value in spread(lateness).items()},
    }


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return the 50th and 99th percentile and the maximum of `seconds`, in ms."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    figures = {"p50": cuts[49], "p99": cuts[98], "max": max(seconds)}
    return {name: round(value * 1000, 2) for name, value in figures.items()}
