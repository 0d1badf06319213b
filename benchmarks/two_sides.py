"""Start one side of a comparison in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_side(script: Path, side: str, arguments: list[str], extra: dict[str, str]) -> Any:
    """Run `script --side SIDE ARGUMENTS` and parse its last output line as JSON. `extra`:
    additional environment variables. If the script fails, exit with its errors."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"} | extra
    # -P: without it, kernels.py in this folder would hide a package with the same name.
    command = [sys.executable, "-P", str(script), "--side", side, *arguments]
    done = subprocess.run(command, env=env, capture_output=True)
    if done.returncode:
        sys.exit(done.stderr.decode(errors="replace"))
    return json.loads(done.stdout.decode().splitlines()[-1])
