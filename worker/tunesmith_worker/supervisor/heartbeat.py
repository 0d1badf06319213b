"""Heartbeat of a worker: a thread in its main process reports to the server every 10 s.

If the server answers that work waits, the thread wakes the pool directly, without the broker.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from typing import Any, Protocol

from celery.worker import state as celery_state

from tunesmith_schema import WorkerHello, WorkerWelcome
from tunesmith_schema.queue import TRAIN_QUEUE, TRAIN_TASK, VALIDATE_FILE_TASK
from tunesmith_schema.versions import installed_version

from . import base_models
from .device_health import describe_device, device_memory
from .identity import WorkerIdentity
from .server_api import ServerApi, ServerRefused, ServerUnreachable
from .settings import WorkerSettings
from .shutdown import DRAINING
from .tasks import run_task

log = logging.getLogger(__name__)

HELLO_SECONDS = 10.0
AGAIN_SECONDS = 0.5
"""Seconds to wait if the server does not answer, often because the API is still starting."""


class Pool(Protocol):
    """Pool of a Celery worker with one process."""

    def on_apply(
        self, target: Callable[[str, str], None], args: tuple[str, str], *, waitforslot: bool
    ) -> Any:  # Any: Celery's result, with `ready()`
        """Make the process call `target(*args)` after its current call."""


class HeartbeatThread(threading.Thread):
    """Sends hello messages, and wakes the pool if the pool is idle and work waits."""

    def __init__(
        self,
        settings: WorkerSettings,
        identity: WorkerIdentity,
        why_not_ready: Callable[[], str | None] = lambda: None,
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._why_not_ready = why_not_ready
        self._settings, self._identity = settings, identity
        self._pool: Pool | None = None
        self._woken: list[Any] = []  # Any: Celery's results
        self._stop_requested = threading.Event()
        self._hello = WorkerHello(
            worker_id=identity.worker_id,
            queue=identity.queue,
            host=socket.gethostname(),
            device=describe_device(),
            version=installed_version("tunesmith"),
            models=base_models.model_names(settings),
            labels=settings.labels,
            device_bytes=device_memory(),
        )

    def start_with(self, pool: Pool) -> None:
        """Start the thread, which wakes `pool` if work waits."""
        self._pool = pool
        self.start()

    def run(self) -> None:
        with ServerApi(self._settings, self._identity) as api:
            delay, failures = 0.0, 0
            while not self._stop_requested.wait(delay):
                delay = HELLO_SECONDS
                try:
                    self._hello.models = base_models.model_names(self._settings)
                    self._hello.not_ready = self._why_not_ready()
                    welcome = api.hello(self._hello)
                except ServerUnreachable as error:
                    delay, failures = AGAIN_SECONDS, failures + 1
                    if failures % 600 == 20:  # log after 10 s, then every five minutes
                        log.warning("no answer from the server: %s", error)
                    continue
                except ServerRefused as error:
                    log.error("the server refused this worker: %s", error)
                    continue
                failures = 0
                self._touch_hello_file()
                self._wake(welcome)
            try:
                api.goodbye(self._hello.worker_id)
            except (ServerUnreachable, ServerRefused) as error:
                log.info("goodbye not sent: %s", error)

    def stop(self) -> None:
        self._stop_requested.set()
        if self.is_alive():
            self.join(timeout=5)

    def _touch_hello_file(self) -> None:
        if self._settings.hello_file is not None:
            try:
                self._settings.hello_file.touch()
            except OSError as error:  # the worker does not need this file
                log.warning(
                    "cannot update TUNESMITH_HELLO_FILE %s: %s",
                    self._settings.hello_file,
                    error.strerror,
                )

    def _wake(self, welcome: WorkerWelcome) -> None:
        # A busy pool takes the next job or message by itself.
        if self._pool is None or not _is_idle() or not all(call.ready() for call in self._woken):
            return
        waiting = [(VALIDATE_FILE_TASK, file_id) for file_id in welcome.files_waiting]
        # The train task of a worker that is not ready repeats the check of its device.
        unfit = self._hello.not_ready not in (None, DRAINING)
        if self._identity.queue == TRAIN_QUEUE and (welcome.jobs_waiting or unfit):
            waiting = [(TRAIN_TASK, "")]
        self._woken = [self._pool.on_apply(run_task, work, waitforslot=False) for work in waiting]


def _is_idle() -> bool:
    requests: Any = celery_state.reserved_requests  # Any: celery is untyped
    return len(requests) == 0
