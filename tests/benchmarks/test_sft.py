"""A small run of benchmarks/sft.py: a tripwire well below its bars, which a busy machine passes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.sft import difference

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_ours_is_faster_and_leaner_than_stock_and_learns_the_same() -> None:
    command = [sys.executable, "-m", "benchmarks.sft", "--rounds", "1", "--steps", "4"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)  # Any: JSON
    assert result["speed_ratio"] > 1.7
    assert result["memory_ratio"] < 0.4
    assert result["loss_difference"] < 1e-6
    assert len(result["ours"][0]["losses"]) == 4


@pytest.mark.parametrize("broken", [0, 1])
def test_a_loss_that_is_no_number_is_far_from_everything(broken: int) -> None:
    sides: list[dict[str, Any]] = [{"losses": [2.0, 2.0, 2.0]} for _ in range(2)]  # Any: JSON
    assert difference(*sides) == 0.0
    sides[broken]["losses"][1] = math.nan
    assert difference(*sides) == math.inf
