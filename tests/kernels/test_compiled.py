"""The Triton kernels pass the real compiler, not the interpreter alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_every_kernel_compiles_for_hopper_with_wide_loads(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    program = Path(__file__).with_name("compiled_for_hopper.py")
    run = subprocess.run(
        [sys.executable, str(program)],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == 22
    assert [line for line in lines if not line.endswith(" wide")] == []
