"""`tunesmith demo` on a user's model and data: service, training, comparison, summary."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from .service import write_rows

pytestmark = pytest.mark.slow


def test_the_demo_tunes_a_users_model_and_compares(model_dir: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "mine.jsonl", 80)
    command = [sys.executable, "-m", "tunesmith.cli", "demo", "--max-steps", "3"]
    own = ["--model", str(model_dir / "tiny"), "--data", str(rows)]
    done = subprocess.run(
        [*command, *own, "--output", str(tmp_path / "out")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    output = tmp_path / "out"
    assert {"adapter", "loss.png", "summary.json", "summary.md", "service.log"} <= {
        path.name for path in output.iterdir()
    }
    figures = json.dumps(json.loads((output / "summary.json").read_text()))
    assert "NaN" not in figures
    assert math.isfinite(float(done.stdout.split(" s in total")[0].split()[-1]))
    assert (output / "adapter" / "adapter_model.safetensors").stat().st_size > 0
