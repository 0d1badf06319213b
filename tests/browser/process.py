"""The API as a process of its own, which tests and the benchmark watch, kill and start again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tunesmith_server.core.settings import Settings

from .seeding import Large, fill_large
from .service import Service, new_settings, serving

START_SECONDS = 60.0
_CPU_CLOCK = 2
"""Kind of a process's clock in the number that Linux gives it (`CPUCLOCK_SCHED`)."""


class ApiProcess:
    """`tunesmith api` on a port that stays the same."""

    def __init__(self, settings: Settings) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self._port}"
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the process has started"
        return self._process.pid

    def start(self) -> float:
        """Start, and return the time at which the API answers (Unix seconds)."""
        variables = {
            "DATA_DIR": str(self._settings.data_dir),
            "DATABASE_URL": self._settings.database_url,
            "STORAGE_URL": self._settings.storage_url,
            "BROKER_URL": self._settings.broker_url,
            "MODEL_DIRS": self._settings.model_dirs,
            "PORT": str(self._port),
            "SERVER_URL": self.url,
            "JANITOR_SECONDS": "3600",
        }
        env = {name: text for name, text in os.environ.items() if "TUNESMITH_" not in name}
        env |= {f"TUNESMITH_{name}": text for name, text in variables.items() if text}
        log = self._settings.data_dir / "api-process.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tunesmith_server", "api"],
                env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the API did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.02)
        return time.time()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def cpu_seconds(self) -> float:
        """Return the CPU time of all threads, including ended ones, exact to the nanosecond."""
        return time.clock_gettime(~self.pid << 3 | _CPU_CLOCK)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def api_process(folder: Path, large: Large | None = None) -> Iterator[tuple[Service, ApiProcess]]:
    """Seed a service in `folder`, then serve it from a process of its own."""
    settings = new_settings(folder)
    with serving(settings) as seeded:
        if large is not None:
            fill_large(seeded.database, seeded.storage, seeded.world, large)
    api = ApiProcess(settings)
    api.start()
    try:
        yield replace(seeded, url=api.url), api
    finally:
        api.kill()
