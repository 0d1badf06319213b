"""The trainer's command: `python -m tunesmith_worker.trainer RUN_DIR`."""

from __future__ import annotations

import os
import sys

from tunesmith_worker.rundir.hand_over import WARM
from tunesmith_worker.rundir.process import (
    default_environment,
    die_with_supervisor,
    exit_fast,
    keep_freed_memory,
)

from .run import command, warm

if __name__ == "__main__":
    die_with_supervisor()
    default_environment(os.environ)  # a run without a supervisor lacks these variables
    keep_freed_memory()
    exit_fast(warm() if sys.argv[1:] == [WARM] else command())
