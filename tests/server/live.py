"""The app on a real uvicorn, in a thread, on a free loopback port."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from fastapi import FastAPI

from tunesmith_server.core.settings import Settings
from tunesmith_server.listener import make_listener


@contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """Serve `app`, including its lifespan, and yield the URL."""
    settings: Settings = app.state.tunesmith.settings
    server = make_listener(app, settings.model_copy(update={"port": 0}))
    thread = Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.started, "uvicorn did not start"
        port = server.servers[0].sockets[0].getsockname()[1]
        yield settings.model_copy(update={"port": port}).url
    finally:
        server.should_exit = True
        thread.join(20)
