"""What this host computes with, without importing torch."""

from __future__ import annotations

import platform
import shutil
import subprocess


def describe_device() -> str:
    """The GPU's name as its driver has it, else the CPU."""
    if shutil.which("nvidia-smi"):
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        names = [line.strip() for line in asked.stdout.splitlines() if line.strip()]
        if asked.returncode == 0 and names:
            return f"{len(names)} x {names[0]}" if len(names) > 1 else names[0]
    return f"cpu ({platform.machine()})"
