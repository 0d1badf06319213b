"""Runs that are killed after a step or asked to stop at a step, all in one process."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.worker.runs import read_events
from tunesmith_schema import EventKind
from tunesmith_worker.rundir.control import StopControl
from tunesmith_worker.trainer.report.watch import LIVE
from tunesmith_worker.trainer.run import main

MEASURED = (
    *("tokens_per_second", "step_seconds", "data_wait_share", "padding_share"),
    *(f"{name}_share" for name in (*LIVE, "idle")),
    "generated_tokens_per_second",
)
"""Metrics that differ between runs; memory metrics also differ."""


class Killed(Exception):
    """Ends the run immediately."""


def interrupt(
    run: Path, patch: pytest.MonkeyPatch, *, kill: int | None = None, stop: int | None = None
) -> int:
    """Run `main`, and kill it or ask it to stop at the end of the given step. Return its status."""

    def step_ended(control: StopControl, step: int) -> None:
        if step == kill:
            raise Killed
        control.stop_requested = control.stop_requested or step == stop

    with patch.context() as patched:
        patched.setattr(StopControl, "step_ended", step_ended)
        return main(run)


def weights_hash(run: Path) -> str:
    """Return the sha256 of the run's adapter."""
    (file,) = (run / "adapter").glob("*model.safetensors")
    return hashlib.sha256(file.read_bytes()).hexdigest()


def metrics_of(run: Path) -> dict[tuple[int, str], Any]:
    """Return the latest metrics by step and name, without those that differ between runs."""
    told: dict[tuple[int, str], Any] = {}
    for event in read_events(run):
        step = event.data.get("step")
        assert isinstance(step, int) or event.kind is not EventKind.METRICS
        if event.kind is EventKind.METRICS:
            told |= {
                (int(str(step)), name): value
                for name, value in event.data.items()
                if name not in MEASURED and not name.startswith("memory_")
            }
    return told


def resume_points(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").glob("resume-*"))
