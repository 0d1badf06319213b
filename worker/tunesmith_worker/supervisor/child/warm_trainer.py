"""Warm trainers for the supervisor: trainers that have done their imports and wait for a run.

`rundir/hand_over.py` describes the protocol.
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
    """A warm trainer's process and socket. Only `kill` waits for the process; all other methods
    return at once."""

    def __init__(self, program: TrainerProgram, cwd: Path) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._received = b""
        with theirs:
            self.process: subprocess.Popen[bytes] = program.spawn(
                WARM, cwd=cwd, stdin=theirs.fileno(), output=self._output
            )

    def hand_over(self, run_dir: Path) -> None:
        """Send the run to the trainer.

        If SIGSTOP has stopped the process, the method first continues it. If the process is dead,
        the method does nothing.
        """
        line = json.dumps(asdict(HandOver(run_dir=str(run_dir), at=time.monotonic())))
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGCONT)
            self._socket.sendall(line.encode() + b"\n")

    def is_ready(self) -> bool:
        """Return True if the imports are done."""
        return self._receive().startswith(READY)

    def has_taken(self) -> bool:
        """Return True if the process has accepted the run."""
        return self._receive() == READY + TAKEN

    def output_end(self) -> str:
        """Return the last lines that the trainer printed before it received a run."""
        size = os.fstat(self._output.fileno()).st_size
        tail = os.pread(self._output.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        return tail.decode(errors="replace").strip()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # the process has already ended
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.close()

    def close(self) -> None:
        """Close the socket and the output. The process continues to run."""
        self._socket.close()
        self._output.close()

    def _receive(self) -> bytes:
        # Ignored errors: no data has arrived yet, or the process has ended.
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            self._received += self._socket.recv(64)
        return self._received
