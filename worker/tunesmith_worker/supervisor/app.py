"""Start the Celery worker with one process, early acknowledgement and no prefetch.

Broker messages only wake the worker's pool; jobs are recorded only in the database. If a message is
lost or the broker is unreachable, the heartbeat thread wakes the pool.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from typing import Any

from celery import Celery, bootsteps, signals
from celery.apps.worker import Worker
from celery.concurrency.prefork import BlockingPool, TaskPool

from tunesmith_schema.log_lines import secure_handlers
from tunesmith_schema.queue import LIGHT_QUEUE, TRAIN_QUEUE, celery_broker
from tunesmith_worker.rundir.device_use import Announcement, DeviceUse
from tunesmith_worker.rundir.paths import KEEP_SECONDS, remove_unused

from . import tasks
from .claim_lock import OrphanReporter
from .cleanup import new_temporary_folder
from .device_health import DeviceHealth, free_gpu_memory, worker_gpu
from .heartbeat import HeartbeatThread, Pool
from .identity import Queue, WorkerIdentity
from .launcher import Launcher
from .settings import WorkerSettings
from .shutdown import DRAINING, ShutdownState


def run_worker(settings: WorkerSettings, queue: Queue) -> None:
    """Take messages of one queue until SIGTERM, then release the job in progress."""
    runs, models = settings.data_dir / "runs", settings.data_dir / "models"
    for folder in (runs, models, settings.token_cache, settings.compile_cache):
        folder.mkdir(parents=True, exist_ok=True)
        remove_unused(folder, KEEP_SECONDS)
    app = make_app(settings.broker_url)
    identity = WorkerIdentity.new(queue)
    # Create this object before the pool forks, so that parent and child process share its state.
    shutdown = ShutdownState(settings, identity.worker_id)
    is_train_worker = queue == TRAIN_QUEUE
    gpu = worker_gpu() if is_train_worker else None
    free_memory = free_gpu_memory if is_train_worker else lambda: None
    health = DeviceHealth(settings.data_dir, free_memory, gpu)
    reserved = Announcement(DeviceUse(kind="worker", gpu=gpu)) if gpu else None
    tmp = new_temporary_folder()
    launcher = Launcher(settings, tmp)
    tasks.register(app, settings, identity, shutdown, launcher, health)

    def why_not_ready() -> str | None:
        return DRAINING if shutdown.is_draining() else health.reason

    heartbeat = HeartbeatThread(settings, identity, why_not_ready)
    orphans = OrphanReporter(settings, identity)

    def start_threads(pool: Pool) -> None:
        heartbeat.start_with(pool)
        if is_train_worker:
            orphans.start()

    app.steps["worker"].add(_after_pool(start_threads))
    secure_logs()
    # weak=False keeps the receivers alive: Celery's signals hold weak references by default.
    signals.worker_shutting_down.connect(lambda **_: shutdown.request(), weak=False)
    signals.worker_shutdown.connect(lambda **_: heartbeat.stop(), weak=False)
    if is_train_worker:  # warm trainers belong to the pool's process and end with it
        signals.worker_shutdown.connect(lambda **_: orphans.stop(), weak=False)
        signals.worker_process_init.connect(lambda **_: launcher.keep_warm_trainer(), weak=False)
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
        if reserved is not None:
            reserved.close()
        shutdown.close()
        shutil.rmtree(tmp, ignore_errors=True)


def _after_pool(start: Callable[[Pool], None]) -> type[bootsteps.StartStopStep]:
    """Return a Celery bootstep that calls `start` with the pool.

    Celery's signal `worker_ready` would wait for the broker; a bootstep does not wait."""

    class AfterPool(bootsteps.StartStopStep):  # type: ignore[misc]  # celery is untyped
        requires = ("celery.worker.components:Pool",)

        def start(self, parent: Any) -> None:  # Any: celery is untyped
            start(parent.pool)

    return AfterPool


class ThreadedPoolWorker(Worker):  # type: ignore[misc]  # celery is untyped
    """Celery worker that feeds its pool from threads instead of an event loop.

    While the broker is unreachable, Celery's event loop stops, and the pool gets no input."""

    def should_use_eventloop(self) -> bool:
        return False


class PrivateLocksPool(BlockingPool):  # type: ignore[misc]  # billiard is untyped
    """Pool of one process, which is replaced if it is killed.

    In billiard's pool, an idle process holds a lock that the next process needs too. If the idle
    process is killed, nobody releases this lock. In this pool, only one process at a time uses the
    queues, so each process can have its own locks."""

    def _setup_queues(self) -> None:
        super()._setup_queues()
        for queue in (self._inqueue, self._outqueue):
            queue._rlock, queue._wlock = threading.Lock(), threading.Lock()

    def _join_exited_workers(self, shutdown: bool = False) -> list[int]:
        """Fail the task calls that a dead pool process may have received.

        billiard fails only the calls that the process had confirmed. If a call is lost before it is
        confirmed, Celery waits forever for its result and takes no further message. The next
        process may still execute a call that this method has failed; the call's result is
        ignored."""
        exit_codes: list[int] = super()._join_exited_workers(shutdown)
        for call in list(self._cache.values()) if exit_codes else ():
            if not call.ready() and not call.accepted():
                call._ack(None, time.monotonic(), 0, None)  # Celery acknowledges the message
                self.mark_as_worker_lost(call, exit_codes[0])
        return exit_codes


class OneProcessPool(TaskPool):  # type: ignore[misc]  # celery is untyped
    BlockingPool = PrivateLocksPool


def secure_logs() -> None:
    """Make the log handlers that Celery creates write one line per message."""
    for created in (signals.after_setup_logger, signals.after_setup_task_logger):
        created.connect(lambda logger, **_: secure_handlers(logger), weak=False)


def make_app(broker_url: str) -> Celery:
    """Create a Celery app with settings that make lost or duplicate messages harmless."""
    app = Celery("tunesmith")
    app.conf.update(
        celery_broker(broker_url),
        broker_connection_retry_on_startup=True,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        task_acks_late=False,
        worker_prefetch_multiplier=1,
        worker_pool=f"{__name__}:{OneProcessPool.__name__}",
        worker_disable_prefetch=broker_url.startswith("redis"),
        worker_hijack_root_logger=False,
        task_default_queue=LIGHT_QUEUE,
    )
    app.Worker = app.subclass_with_self(ThreadedPoolWorker)
    return app
