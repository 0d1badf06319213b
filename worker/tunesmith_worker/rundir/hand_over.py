"""Protocol by which the supervisor gives a run to a warm trainer, over the trainer's stdin socket.

The trainer sends READY after its imports; the supervisor sends one `HandOver` line; the trainer
answers TAKEN, or ends without an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

WARM = "--warm"
"""In place of the run directory on the command line."""
READY, TAKEN = b"ready\n", b"taken\n"


@dataclass(frozen=True, kw_only=True)
class HandOver:
    run_dir: str
    at: float
    """When, by the clock that all processes share and nobody sets (`time.monotonic`)."""
