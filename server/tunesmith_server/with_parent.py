"""Replace this process by a command that ends when its parent ends: `python -m
tunesmith_server.with_parent PARENT_PID COMMAND...`.

A process with threads must not run Python code between fork and exec, so this program sets the
signal. On other systems than Linux, the command outlives a parent that is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before the call above
            sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
