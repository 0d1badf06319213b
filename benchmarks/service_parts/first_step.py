"""Time to first step: from the POST to the first step's event, tiny model, workers up and warm."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import tunesmith
from tunesmith_worker.demo.architecture import write_architecture

from .installation import BASE_MODEL, ROWS, installation

JOBS = 5
WAIT_SECONDS = 120.0
PARTS = ("claim", "download", "spawn", "import", "load", "data")
"""Phases before the first step, as the job's own events name them."""


def measure(folder: Path) -> dict[str, Any]:
    """Medians over some jobs, one after the other; one more before them warms up. Any: JSON."""
    texts = [turn["content"] for row in ROWS.splitlines() for turn in json.loads(row)["messages"]]
    write_architecture(folder / "models" / BASE_MODEL, texts)
    with (
        installation(folder, workers=True) as service,
        tunesmith.Client(f"{service.url}/v1", service.api_key) as client,
    ):
        file = client.files.create(file=("rows.jsonl", ROWS))
        client.files.wait_for_processing(file.id)
        runs = [_one(client, file.id) for _ in range(JOBS + 1)][1:]
    totals = [run["first_step"] for run in runs]
    return {
        "jobs": JOBS,
        "first_step_seconds": round(statistics.median(totals), 2),
        "fastest_seconds": round(min(totals), 2),
        "slowest_seconds": round(max(totals), 2),
        "part_seconds": {
            name: round(statistics.median(run[name] for run in runs), 2) for name in PARTS
        },
    }


def _one(client: tunesmith.Client, file_id: str) -> dict[str, float]:
    """Seconds by phase, and `first_step`: until our own watcher has the event."""
    began = time.monotonic()
    job = client.fine_tuning.jobs.create(
        model=BASE_MODEL,
        training_file=file_id,
        recipe={"tuning": "full", "from_scratch": True, "max_steps": 3},
    )
    seconds: dict[str, float] = {}
    for event in job.stream():
        phase, taken = event.data.get("phase"), event.data.get("seconds")
        if event.kind == "phase" and isinstance(taken, int | float):
            seconds[str(phase)] = float(taken)
        if event.kind == "metrics" and "first_step" not in seconds:
            seconds["first_step"] = time.monotonic() - began
    ended = client.fine_tuning.jobs.retrieve(job.id)
    if ended.status != "succeeded":
        raise RuntimeError(f"{job.id} {ended.status}: {ended.error and ended.error.message}")
    return seconds
