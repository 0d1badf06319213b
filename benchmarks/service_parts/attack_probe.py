"""Measure the latencies of `/healthz` and of a running job's reports, in a separate process."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.synchronize import Event
from typing import Any

import httpx

from .installation import Installation
from .load import spread

PAUSE_SECONDS = 0.05
TIMEOUT_SECONDS = 60.0


class Probe:
    def __init__(self, service: Installation, claim: dict[str, Any]) -> None:  # Any: JSON
        spawn = multiprocessing.get_context("spawn")
        self._started, self._stopped = spawn.Event(), spawn.Event()
        self._results = spawn.SimpleQueue()
        arguments = (service, claim, self._started, self._stopped, self._results)
        self._process = spawn.Process(target=_probe, args=arguments, daemon=True)
        self._process.start()

    def start(self) -> None:
        self._started.set()

    def stop(self) -> dict[str, float]:
        """Return the 50th and 99th percentile and the maximum of the latencies, in ms.

        A failed request counts as TIMEOUT_SECONDS.
        """
        self._stopped.set()
        seconds: dict[str, list[float]] = self._results.get()
        self._process.join()
        return {
            f"{name}_{figure}_ms": value
            for name, taken in seconds.items()
            for figure, value in spread(taken).items()
        } | {"probes": len(seconds["healthz"])}

    def kill(self) -> None:
        self._process.kill()


@contextmanager
def running(service: Installation, claim: dict[str, Any]) -> Iterator[Probe]:  # Any: JSON
    probe = Probe(service, claim)
    try:
        yield probe
    finally:
        probe.kill()


def _probe(
    service: Installation,
    claim: dict[str, Any],  # Any: JSON
    started: Event,
    stopped: Event,
    results: Any,  # Any: multiprocessing's SimpleQueue has no public type
) -> None:
    seconds: dict[str, list[float]] = {"healthz": [], "report": []}
    started.wait()
    number = 0
    with service.worker() as worker:
        while not stopped.is_set() or number < 20:
            number += 1
            # Use a new connection, because new clients must be able to connect.
            seconds["healthz"].append(_time(partial(httpx.get, f"{service.url}/healthz", **_ALONE)))
            seconds["report"].append(_time(partial(_report, worker, claim, number)))
            time.sleep(PAUSE_SECONDS)
    results.put(seconds)


_ALONE: dict[str, Any] = {"trust_env": False, "verify": False, "timeout": TIMEOUT_SECONDS}


def _report(worker: httpx.Client, claim: dict[str, Any], number: int) -> httpx.Response:
    event = {"source_seq": number, "created_at": time.time(), "message": "alive"}
    body = {
        "worker_id": claim["worker_id"], "attempt": claim["attempt"], "fence": claim["fence"],
        "events": [event],
    }  # fmt: skip
    return worker.post(f"jobs/{claim['job_id']}/report", json=body)


def _time(ask: Callable[[], httpx.Response]) -> float:
    began = time.perf_counter()
    try:
        if ask().status_code == 200:
            return time.perf_counter() - began
    except httpx.TransportError:
        pass
    return max(TIMEOUT_SECONDS, time.perf_counter() - began)
