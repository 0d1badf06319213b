"""One process of the larger stack, started again whenever it ends, as a container would be."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

RESTART_SECONDS = 0.3


@dataclass(kw_only=True)
class Part:
    """A process with its own session, working directory and log."""

    name: str
    command: list[str]
    env: dict[str, str]
    log: Path
    account: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    may_exit: str = ""
    """Text in the last lines of the log that explains an exit with status 1."""
    exits: list[str] = field(default_factory=list)
    """Ends of the process that are neither a SIGKILL nor a requested stop."""
    _process: subprocess.Popen[bytes] | None = None
    _thread: threading.Thread | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Start the process; a thread starts it again after each end. The kernel stops the
        process if the thread ends."""
        self._thread = threading.Thread(target=self._keep, name=self.name, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Process id; None while the process is down."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(60)

    def _keep(self) -> None:
        while not self._stopping.is_set():
            self._process = self._spawn()
            while self._process.poll() is None and not self._stopping.wait(0.02):
                pass
            if self._process.poll() is None:
                self._end(self._process)
                return
            if self._process.returncode != -signal.SIGKILL:
                self._record(self._process.returncode)
            self._stopping.wait(RESTART_SECONDS)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(self.stop_signal)
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self.exits.append(f"{self.name} did not stop within 40 s")

    def _record(self, status: int) -> None:
        tail = self.log.read_text(errors="replace")[-600:]
        if not (status == 1 and self.may_exit and self.may_exit in tail):
            self.exits.append(f"{self.name} ended with status {status}: {tail[-300:]}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as output:
            return subprocess.Popen(
                self.command,
                env=self.env,
                cwd=self.log.parent,
                user=self.account,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=self._end_with_us,
            )

    def _end_with_us(self) -> None:
        ctypes.CDLL(None).prctl(1, self.stop_signal)  # PR_SET_PDEATHSIG
