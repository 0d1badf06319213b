"""Run a program as a child in this process's group: `python -m tunesmith_server.inference.guard
COMMAND`. At SIGTERM, end the whole process group; Linux also sends SIGTERM when `tunesmith serve`
ends.

The guard is needed because vLLM ignores SIGTERM while it starts, and because vLLM's processes do
not end with their parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from types import FrameType

from tunesmith_server.children import die_with_parent

STOP_SECONDS = 10.0
"""Seconds that the child has to end after SIGTERM, before the guard kills the process group.
`tunesmith serve` waits longer before it kills the guard."""


def main() -> int:
    parent = os.getppid()
    child = subprocess.Popen(sys.argv[1:], preexec_fn=die_with_parent)
    try:
        signal.signal(signal.SIGTERM, _leave)
        if os.getppid() != parent:  # it ended before the handler was set
            raise SystemExit
        status = child.wait()
        return status if status >= 0 else 128 - status
    except SystemExit:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_SECONDS)
        os.killpg(0, signal.SIGKILL)
        raise


def _leave(signum: int, frame: FrameType | None) -> None:
    """Handle SIGTERM: raise SystemExit, so that `main` stops waiting for the child and ends the
    process group. A wait inside this handler would not notice the end of the child."""
    raise SystemExit


if __name__ == "__main__":
    sys.exit(main())
