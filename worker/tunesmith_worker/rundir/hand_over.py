"""Protocol to hand a run over to a warm trainer, through the trainer's stdin socket.

A warm trainer is a process that does its imports before it gets a run. The trainer sends READY
after its imports. After READY, the supervisor sends one `HandOver` line. The trainer answers TAKEN,
or exits without an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

WARM = "--warm"
"""Command-line argument of a warm trainer, instead of the run directory."""
READY, TAKEN = b"ready\n", b"taken\n"


@dataclass(frozen=True, kw_only=True)
class HandOver:
    run_dir: str
    at: float
    """Time of the hand-over from `time.monotonic`, which is the same in all processes."""
