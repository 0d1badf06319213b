"""Run one side of a comparison (our implementation or another one) in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


def run_side(
    script: Path,
    side: str,
    arguments: list[str],
    extra: dict[str, str],
    python: str = sys.executable,
) -> Any:
    """Run `script --side SIDE ARGUMENTS` and parse its last output line as JSON. `extra`:
    additional environment variables. `python`: interpreter. If the script fails, exit with its
    errors."""
    command = _command(script, side, arguments, python)
    done = subprocess.run(command, env=_environment(extra), capture_output=True)
    if done.returncode:
        sys.exit(done.stderr.decode(errors="replace"))
    return json.loads(done.stdout.decode().splitlines()[-1])


class Side:
    """Process of one side of a comparison, which measures several models one after the other."""

    def __init__(self, script: Path, side: str, arguments: Sequence[str]) -> None:
        """Start `script --side SIDE ARGUMENTS`. For each line on its stdin, the script measures the
        next model."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in close()
        self._process = subprocess.Popen(
            _command(script, side, arguments),
            env=_environment({}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def run(self) -> Any:  # Any: JSON
        """Measure the next model, and return the line that the process prints. If the process ends,
        exit with its errors."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # the side has ended: it prints no line
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            sys.exit(self._errors.read().decode(errors="replace"))
        return json.loads(line)

    def close(self) -> None:
        """Wait until the process has ended."""
        self._process.communicate()
        self._errors.close()


def _command(
    script: Path, side: str, arguments: Sequence[str], python: str = sys.executable
) -> list[str]:
    # -P: without it, kernels.py in this folder would hide a package with the same name.
    return [python, "-P", str(script), "--side", side, *arguments]


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **extra}
