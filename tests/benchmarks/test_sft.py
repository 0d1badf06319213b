"""A small run of benchmarks/sft.py: a tripwire well below its bars, which a busy machine passes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "sft.py"


@pytest.mark.slow
def test_ours_is_faster_and_leaner_than_stock_and_learns_the_same() -> None:
    command = [sys.executable, str(PROGRAM), "--rounds", "1", "--steps", "4"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)  # Any: JSON
    assert result["speed_ratio"] > 1.7
    assert result["memory_ratio"] < 0.4
    assert result["loss_difference"] < 1e-6
    assert len(result["ours"][0]["losses"]) == 4
