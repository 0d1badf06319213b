"""The trainer's command: `python -m tunesmith_worker.trainer RUN_DIR`."""

from __future__ import annotations

import os
import sys

from tunesmith_worker.rundir.hand_over import SPARE
from tunesmith_worker.rundir.process import (
    default_environment,
    die_with_supervisor,
    keep_freed_memory,
    leave,
)

from .run import command, warm

if __name__ == "__main__":
    die_with_supervisor()
    default_environment(os.environ)  # a run by hand has no supervisor that sets it
    keep_freed_memory()
    leave(warm() if sys.argv[1:] == [SPARE] else command())
