"""Protocol by which the supervisor gives a run to a warm trainer, over the trainer's stdin socket.

The trainer sends READY after its imports; the supervisor sends one `HandOver` line; the trainer
answers TAKEN, or ends without an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

WARM = "--warm"
"""Argument of a warm trainer, in place of the run directory."""
READY, TAKEN = b"ready\n", b"taken\n"


@dataclass(frozen=True, kw_only=True)
class HandOver:
    run_dir: str
    at: float
    """Time of the hand-over by `time.monotonic`, which all processes share."""
