"""Measure the CPU time per request of uvicorn's HTTP protocols (h11, httptools) and of the API's
own protocol. The application does nothing."""

from __future__ import annotations

import functools
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send

from tunesmith_server.connections import ConnectionGuard
from tunesmith_server.http_protocol import GuardedProtocol

from .connections import Target
from .load import Load, run
from .process_use import cpu_seconds

PROTOCOLS = ("h11", "httptools", "guarded")
_BODY = {"model": "tiny", "training_file": "file-0123456789abcdef", "suffix": "benchmark"}


def measure(folder: Path) -> dict[str, Any]:
    """Measure each protocol twice, in alternation, with 2,000 POST requests each time."""
    figures: dict[str, list[float]] = {name: [] for name in PROTOCOLS}
    for _ in range(2):
        for name in PROTOCOLS:
            with _serving(name) as (process, port):
                figures[name].append(_cpu_ms(process, port))
    return {f"{name}_cpu_ms_per_request": min(each) for name, each in figures.items()}


def _cpu_ms(process: BaseProcess, port: int) -> float:
    assert process.pid is not None, "the process has started"
    target = Target(host="127.0.0.1", port=port, key="x" * 40)
    load = Load(name="post", method="POST", path="/", body=_BODY, per_second=500, seconds=4)
    run(target, [load])  # warm-up
    before = cpu_seconds(process.pid)
    requests = run(target, [load])["post"]["requests"]
    return round((cpu_seconds(process.pid) - before) * 1000 / requests, 3)


@contextmanager
def _serving(name: str) -> Iterator[tuple[BaseProcess, int]]:
    spawn = get_context("spawn")
    ports = spawn.SimpleQueue()
    process = spawn.Process(target=_serve, args=(name, ports), daemon=True)
    process.start()
    try:
        yield process, ports.get()
    finally:
        process.terminate()
        process.join()


def _serve(name: str, ports: Any) -> None:  # Any: multiprocessing's SimpleQueue has no public type
    http: Any = name  # Any: uvicorn takes a name or a factory
    if name == "guarded":
        guard = ConnectionGuard(per_address=100, total=100)
        http = functools.partial(GuardedProtocol, guard=guard)
    config = uvicorn.Config(
        _app, http=http, ws="none", lifespan="off", access_log=False, log_level="warning"
    )
    listening = socket.create_server(("127.0.0.1", 0))
    ports.put(listening.getsockname()[1])
    uvicorn.Server(config).run([listening])


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})
