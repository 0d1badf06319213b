"""The Celery worker: wake-ups only. Early ack, one process, no prefetch; the database is the truth.

A thread of the main process says hello to the server every 10 s and wakes the pool when jobs wait
that no message has announced.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Literal

from celery import Celery, signals
from celery.worker import state as celery_state

from tunesmith_schema import WorkerHello
from tunesmith_schema.queue import LIGHT_QUEUE, TRAIN_QUEUE, TRAIN_TASK, broker_transport
from tunesmith_worker.rundir.paths import KEEP_SECONDS, forget_unused

from . import base_models, tasks
from .claim_lock import Watchman
from .device_health import DeviceGuard, free_gpu_memory
from .devices import describe_device
from .launcher import Launcher
from .server_api import ServerApi, ServerRefused, ServerUnreachable
from .settings import WorkerSettings
from .shutdown import DRAINING, Stopping
from .temporary import new_temporary_folder

log = logging.getLogger(__name__)

HELLO_SECONDS = 10.0
AGAIN_SECONDS = 0.5
"""After a hello that got no answer: at first the API is often only just starting."""

Queue = Literal["train", "light"]


def run_worker(settings: WorkerSettings, queue: Queue) -> None:
    """Serve one queue until SIGTERM; a job in progress is released."""
    runs, models = settings.data_dir / "runs", settings.data_dir / "models"
    for folder in (runs, models, settings.token_cache, settings.compile_cache):
        folder.mkdir(parents=True, exist_ok=True)
        forget_unused(folder, KEEP_SECONDS)
    app = make_app(settings.broker_url)
    worker_id = f"{queue}@{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    # Made before the pool forks, so that parent and child share them.
    stopping = Stopping(settings, worker_id)
    trains = queue == TRAIN_QUEUE
    guard = DeviceGuard(settings.data_dir, free_gpu_memory if trains else lambda: None)
    tmp = new_temporary_folder()
    launcher = Launcher(settings, tmp)
    tasks.register(app, settings, worker_id, stopping, launcher, guard)

    def why_not_ready() -> str | None:
        return DRAINING if stopping.draining() else guard.reason

    herald = _Herald(app, settings, queue, worker_id, why_not_ready)
    watchman = Watchman(settings)

    # Strong references: Celery's signals hold their receivers weakly by default.
    signals.worker_ready.connect(lambda **_: herald.start(), weak=False)
    signals.worker_shutting_down.connect(lambda **_: stopping.ask(), weak=False)
    signals.worker_shutdown.connect(lambda **_: herald.stop(), weak=False)
    if trains:  # in the pool's process: a spare dies with the one that spawned it
        signals.worker_ready.connect(lambda **_: watchman.start(), weak=False)
        signals.worker_shutdown.connect(lambda **_: watchman.stop(), weak=False)
        signals.worker_process_init.connect(lambda **_: launcher.keep_spare(), weak=False)
        signals.worker_process_shutdown.connect(lambda **_: launcher.close(), weak=False)
    try:
        app.worker_main(
            [
                "worker",
                *("--pool", "prefork", "--concurrency", "1"),
                *("--queues", queue),
                *("--hostname", f"{queue}-{os.getpid()}@%h"),
                *("--loglevel", "INFO"),
                "--without-gossip",
                "--without-mingle",
                "--without-heartbeat",
            ]
        )
    finally:
        stopping.close()
        shutil.rmtree(tmp, ignore_errors=True)


def make_app(broker_url: str) -> Celery:
    """Celery with the settings that make a lost or doubled message harmless."""
    url, options = broker_transport(broker_url)
    app = Celery("tunesmith", broker=url)
    app.conf.update(
        broker_transport_options=options,
        broker_connection_retry_on_startup=True,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        task_acks_late=False,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=url.startswith("redis"),
        worker_hijack_root_logger=False,
        task_default_queue=LIGHT_QUEUE,
    )
    return app


class _Herald(threading.Thread):
    """Says hello; wakes the pool when it is idle and jobs wait."""

    def __init__(
        self,
        app: Celery,
        settings: WorkerSettings,
        queue: Queue,
        worker_id: str,
        why_not_ready: Callable[[], str | None] = lambda: None,
    ) -> None:
        super().__init__(name="herald", daemon=True)
        self._why_not_ready, self._trains = why_not_ready, queue == TRAIN_QUEUE
        self._app, self._settings = app, settings
        self._stop_asked = threading.Event()
        self._hello = WorkerHello(
            worker_id=worker_id,
            queue=queue,
            host=socket.gethostname(),
            device=describe_device(),
            version=version("tunesmith"),
            models=base_models.names(settings),
        )

    def run(self) -> None:
        with ServerApi(self._settings) as api:
            delay, failures = 0.0, 0
            while not self._stop_asked.wait(delay):
                delay = HELLO_SECONDS
                try:
                    self._hello.models = base_models.names(self._settings)
                    self._hello.not_ready = self._why_not_ready()
                    welcome = api.hello(self._hello)
                except ServerUnreachable as error:
                    delay, failures = AGAIN_SECONDS, failures + 1
                    if failures % 600 == 20:  # after 10 s, then about every five minutes
                        log.warning("the server does not answer: %s", error)
                    continue
                except ServerRefused as error:
                    log.error("the server refuses this worker: %s", error)
                    continue
                failures = 0
                self._show_health()
                unfit = self._hello.not_ready not in (None, DRAINING)  # the pool looks again
                if (welcome.jobs_waiting or unfit) and self._trains and _idle():
                    self._wake()
            try:
                api.goodbye(self._hello.worker_id)
            except (ServerUnreachable, ServerRefused) as error:
                log.info("no goodbye: %s", error)

    def stop(self) -> None:
        self._stop_asked.set()
        if self.is_alive():
            self.join(timeout=5)

    def _show_health(self) -> None:
        if self._settings.hello_file is not None:
            try:
                self._settings.hello_file.touch()
            except OSError as error:  # it only shows; the work goes on
                log.warning("TUNESMITH_HELLO_FILE: %s", error)

    def _wake(self) -> None:
        try:
            self._app.send_task(TRAIN_TASK, args=[""], queue=TRAIN_QUEUE, expires=HELLO_SECONDS)
        except Exception as error:  # any transport's own error: the next round tries again
            log.warning("cannot wake the pool: %s", error)


def _idle() -> bool:
    busy: Any = celery_state.reserved_requests  # Any: celery is untyped
    return len(busy) == 0
