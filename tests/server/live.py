"""The app on a real uvicorn, in a thread, on a free loopback port."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import uvicorn
from fastapi import FastAPI

from tunesmith_server.listener import Listener


@contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """Gives the server's URL; the lifespan of `app` runs in it."""
    config = uvicorn.Config(
        app, port=0, log_config=None, lifespan="on", timeout_graceful_shutdown=5
    )
    server = Listener(config, app.state.tunesmith.hub)
    thread = Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.started, "uvicorn did not start"
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
