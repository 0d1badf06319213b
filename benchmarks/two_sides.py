"""One side of a comparison, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_side(script: Path, side: str, arguments: list[str], extra: dict[str, str]) -> Any:
    """What `script --side SIDE ARGUMENTS` prints as its last line, JSON; `extra` environment. Ends
    this program with the side's errors if it fails."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"} | extra
    # -P: benchmarks/kernels.py beside it must not pass for the package of that name.
    command = [sys.executable, "-P", str(script), "--side", side, *arguments]
    done = subprocess.run(command, env=env, capture_output=True)
    if done.returncode:
        sys.exit(done.stderr.decode(errors="replace"))
    return json.loads(done.stdout.decode().splitlines()[-1])
