"""A warm trainer, seen from the supervisor: its imports are done and it waits for a run.

A warm trainer serves one run (rundir/hand_over.py has the protocol).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from tunesmith_worker.rundir.hand_over import READY, TAKEN, WARM, HandOver

from .spawn import TrainerProgram

_TAIL_BYTES = 1500


class WarmTrainer:
    """The supervisor's end. Nothing here waits."""

    def __init__(self, program: TrainerProgram, cwd: Path) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._heard = b""
        with theirs:
            self.process: subprocess.Popen[bytes] = program.spawn(
                WARM, cwd=cwd, stdin=theirs.fileno(), output=self._output
            )

    def hand_over(self, run_dir: Path) -> None:
        """One that somebody has stopped goes on; one that has died does not answer."""
        line = json.dumps(asdict(HandOver(run_dir=str(run_dir), at=time.monotonic())))
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGCONT)
            self._socket.sendall(line.encode() + b"\n")

    def is_ready(self) -> bool:
        """Its imports are done."""
        return self._hear().startswith(READY)

    def has_taken(self) -> bool:
        """It has taken the run that was handed over."""
        return self._hear() == READY + TAKEN

    def last_words(self) -> str:
        """The end of what it printed before it took a run."""
        size = os.fstat(self._output.fileno()).st_size
        tail = os.pread(self._output.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        return tail.decode(errors="replace").strip()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.close()

    def close(self) -> None:
        """Leave the process to itself."""
        self._socket.close()
        self._output.close()

    def _hear(self) -> bytes:
        with contextlib.suppress(
            BlockingIOError, ConnectionResetError
        ):  # nothing yet; it has ended
            self._heard += self._socket.recv(64)
        return self._heard
