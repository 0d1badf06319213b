"""Supervision of child processes: start, restart after a crash, stop in order."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_LOG_BYTES = 10 * 1024 * 1024
STABLE_SECONDS = 30.0
"""A child that ran this long before a crash is restarted without delay."""


def die_with_parent() -> None:
    """Ask Linux to send this process SIGTERM when its parent dies, even if SIGKILL ended the
    parent."""
    if hasattr(ctypes, "CDLL") and os.uname().sysname == "Linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def without_secrets(env: dict[str, str]) -> dict[str, str]:
    """Return an environment without the secrets of database, storage and inference, which only the
    API may have."""
    ours = ("TUNESMITH_DATABASE_URL", "TUNESMITH_STORAGE_URL", "TUNESMITH_INFERENCE_TOKEN")
    stores = ("AWS_", "AZURE_", "GOOGLE_")
    return {k: v for k, v in env.items() if k not in ours and not k.startswith(stores)}


@dataclass(kw_only=True)
class Child:
    name: str
    command: list[str]
    env: dict[str, str]
    log_file: Path
    stop_seconds: float = 15.0
    """Time between SIGTERM and SIGKILL."""
    stops_first: bool = False
    """Children with this flag receive SIGTERM before all others."""
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    crashes: int = 0
    restart_at: float = field(default=0.0)

    def start(self) -> None:
        if self.log_file.exists() and self.log_file.stat().st_size > _LOG_BYTES:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        with self.log_file.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only the parent
                preexec_fn=die_with_parent,
            )
        self.started_at = time.monotonic()

    def restart_if_ended(self) -> None:
        """Restart the child if it has ended: first immediately, then after 1, 2, 4 ... 30 s."""
        now = time.monotonic()
        if self.process is None:
            if now >= self.restart_at:
                self.start()
            return
        status = self.process.poll()
        if status is None:
            return
        if self.is_stable():
            self.crashes = 0
        delay = self.restart_delay()
        self.crashes += 1
        log.warning("%s ended with status %s; its log is %s", self.name, status, self.log_file)
        self.process, self.restart_at = None, now + delay

    def is_stable(self) -> bool:
        """Return True if the child ran for at least `STABLE_SECONDS` before it ended."""
        return time.monotonic() - self.started_at > STABLE_SECONDS

    def restart_delay(self) -> float:
        """Return the seconds from a crash to the restart, after `crashes` earlier crashes."""
        return 0.0 if self.crashes == 0 else min(30.0, 2.0 ** (self.crashes - 1))

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(self.stop_seconds)
        except subprocess.TimeoutExpired:
            log.warning("%s did not stop within %.0f s: killed", self.name, self.stop_seconds)
            self.kill()

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def stop_all(children: list[Child]) -> None:
    """Stop the children in reverse start order, so that no child loses a service that it needs."""
    try:
        for child in children:
            if child.stops_first and child.process is not None:
                child.process.terminate()
        for child in reversed(children):
            child.stop()
    finally:
        for child in children:
            child.kill()
