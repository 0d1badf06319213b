"""The inference process as a child of the API: started on first use, and again after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

from tunesmith_schema import ErrorCode
from tunesmith_server.core.errors import Unavailable

log = logging.getLogger(__name__)

COMMAND = (
    *(sys.executable, "-m", "tunesmith_worker.inference"),
    *("--host", "127.0.0.1", "--port", "0"),
)
START_SECONDS = 180.0
"""Maximum seconds until the process listens. The process first imports torch."""
STOP_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL."""
RETRY_SECONDS = 10.0
"""Seconds after a failed start until a request may start the process again."""
_POLL_SECONDS = 0.05
_OURS = "error: "
"""Prefix of the log lines in which the process tells operators about wrong settings."""
_LOG_BYTES = 10 * 1024 * 1024


class InferenceProcess:
    """Child process. Call its methods only in the event loop's thread, because Linux ends a child
    when the thread that started the child ends."""

    def __init__(self, env: dict[str, str], log_file: Path) -> None:
        self._env, self._log_file = env, log_file
        self._starting: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._token = ""
        self._failed_at = float("-inf")
        self._closed = False
        self.url = ""
        self.problem: str | None = None

    async def ensure(self) -> tuple[str, str]:
        """Return URL and token of the running process. Raises Unavailable if the process cannot
        start."""
        if (
            self._process is not None
            and self._starting is None
            and self._process.poll() is not None
        ):
            log.warning(
                "inference ended with status %s; its log is %s",
                self._process.returncode, self._log_file,
            )  # fmt: skip
            self._process, self.url = None, ""
        if not self.url:
            if self._starting is None:
                self._refuse_early_retry()
                self._starting = asyncio.create_task(self._start())
            # Shielded: the caller may leave, and others wait for the same start.
            await asyncio.shield(self._starting)
        return self.url, self._token

    async def noticed_end(self) -> None:
        """Wait up to 0.5 s for the end of the process, after a connection to it has broken."""
        for _ in range(10):
            if self._process is None or self._process.poll() is not None:
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def stop(self) -> None:
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        process, self.url = self._process, ""
        if process is None:
            return
        process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        _kill(process)

    def _refuse_early_retry(self) -> None:
        if self._closed:
            raise _cannot_start("the API is stopping", 1)
        left = self._failed_at + RETRY_SECONDS - time.monotonic()
        if left > 0:
            raise _cannot_start(self.problem or "it ended", int(left) + 1)

    async def _start(self) -> None:
        try:
            start = self._spawn()
            assert self._process is not None
            self.url = await self._listening(self._process, start)
        except BaseException:
            process, self._process = self._process, None
            if process is not None:
                _kill(process)
            raise
        finally:
            self._starting = None
        self.problem = None
        log.info("inference listens on %s (pid %s)", self.url, self._process.pid)

    def _spawn(self) -> int:
        """Start the process; return the size of the log file before the start."""
        self._log_file.parent.mkdir(exist_ok=True)
        if self._log_file.exists() and self._log_file.stat().st_size > _LOG_BYTES:
            self._log_file.replace(self._log_file.with_suffix(".log.1"))
        self._token = secrets.token_urlsafe(32)
        env = {
            "TUNESMITH_INFERENCE_TOKEN": self._token,
            "TUNESMITH_SUPERVISOR_PID": str(os.getpid()),  # the child ends with this process
        }
        with self._log_file.open("ab") as output:
            start = output.tell()
            self._process = subprocess.Popen(
                COMMAND,
                env=self._env | env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only `tunesmith serve`
            )
            return start

    async def _listening(self, process: subprocess.Popen[bytes], start: int) -> str:
        deadline = time.monotonic() + START_SECONDS
        while True:
            ended = process.poll() is not None
            with self._log_file.open("rb") as output:
                output.seek(start)
                lines = output.read().splitlines()
            for line in lines:
                if url := _url_in(line):
                    return url
            if ended:
                last = lines[-1].decode(errors="replace") if lines else "no output"
                why = f": {last.removeprefix(_OURS)}" if last.startswith(_OURS) else ""
                self._fail(f"it ended with status {process.returncode}{why}", last)
            if time.monotonic() > deadline:
                self._fail(f"it did not listen within {START_SECONDS:.0f} s")
            await asyncio.sleep(_POLL_SECONDS)

    def _fail(self, reason: str, last: str = "") -> None:
        """Raise Unavailable.

        `last`: last line of the process's log. Only the server's log shows this line, because the
        line may name files of this host.
        """
        self.problem, self._failed_at = reason, time.monotonic()
        log.error("inference did not start: %s: %s; its log is %s", reason, last, self._log_file)
        raise _cannot_start(self.problem, int(RETRY_SECONDS))


def _cannot_start(reason: str, seconds: int) -> Unavailable:
    return Unavailable(
        ErrorCode.UNAVAILABLE,
        f"the inference process did not start: {reason}",
        hint="the log is logs/inference.log in the server's data directory",
        headers={"retry-after": str(seconds)},
    )


def _url_in(line: bytes) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(line)["listening"])
    return ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
