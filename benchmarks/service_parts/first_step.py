"""Measure the time from the POST of a job until a watcher receives the job's first step.

`cold`: the first job after the workers started. `warm`: a warm trainer (an idle process that has
imported its libraries) is ready. `at_once`: the previous job has just ended, and the next warm
trainer is starting. `without`: the worker has no warm trainer. The benchmark alternates between a
`warm` and a `without` job.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tunesmith
from tunesmith_worker.demo.architecture import write_architecture
from tunesmith_worker.rundir.hand_over import WARM

from .installation import BASE_MODEL, ROWS, Installation, installation
from .process_use import cpu_seconds

STARTS = 3
JOBS = 5
QUIET_SECONDS = 2.0
"""A warm trainer counts as ready if it has used no CPU for this number of seconds."""
WAIT_SECONDS = 120.0
PARTS = ("claim", "download", "spawn", "import", "load", "data")
"""Names of the phases before a job's first step, as in the job's events."""

Seconds = dict[str, float]
"""Seconds of each phase. The key `first_step` has the seconds from the request to the first
step."""


def measure(folder: Path) -> dict[str, Any]:
    """Run all jobs of each kind. Return, for each kind, the median seconds of each phase and the
    median seconds until the first step."""
    runs: dict[str, list[Seconds]] = {kind: [] for kind in ("cold", "warm", "at_once", "without")}
    for number in range(STARTS):
        with _service(folder / str(number), warm=True) as (service, run_job):
            runs["cold"].append(run_job())
            if number < STARTS - 1:  # only the first job after a start is a cold start
                continue
            with _service(folder / "without", warm=False) as (_, run_without):
                run_without()  # cold
                for _ in range(JOBS):
                    _wait_for_warm_trainer(service.data_dir)
                    runs["warm"].append(run_job())
                    runs["at_once"].append(run_job())
                    _wait_for_warm_trainer(service.data_dir)
                    runs["without"].append(run_without())
    return {kind: _summary(results) for kind, results in runs.items()}


@contextmanager
def _service(folder: Path, *, warm: bool) -> Iterator[tuple[Installation, Callable[[], Seconds]]]:
    texts = [turn["content"] for row in ROWS.splitlines() for turn in json.loads(row)["messages"]]
    folder.mkdir()
    write_architecture(folder / "models" / BASE_MODEL, texts)
    with (
        installation(folder, workers=True, WARM_TRAINER=str(warm)) as service,
        tunesmith.Client(f"{service.url}/v1", service.api_key) as client,
    ):
        file = client.files.create(file=("rows.jsonl", ROWS))
        client.files.wait_for_processing(file.id)
        yield service, lambda: _train_job(client, file.id)


def _wait_for_warm_trainer(data_dir: Path) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    used, since = -1.0, time.monotonic()
    while used < 0 or time.monotonic() < since + QUIET_SECONDS:
        if time.monotonic() > deadline:
            raise RuntimeError(f"no warm trainer was ready within {WAIT_SECONDS:g} s")
        time.sleep(0.1)
        now = sum(cpu_seconds(pid) for pid in warm_trainers(data_dir)) or -1.0
        if now != used:
            used, since = now, time.monotonic()


def warm_trainers(data_dir: Path) -> list[int]:
    """Return the pids of trainers that wait for a run. The working directory of a waiting trainer
    is `data_dir`; the working directory of a trainer with a run is the run directory."""
    pids = []
    for process in Path("/proc").iterdir():
        try:
            if (process / "cwd").readlink() != data_dir:
                continue
            if WARM in (process / "cmdline").read_text().split("\0"):
                pids.append(int(process.name))
        except OSError:  # not a process, or a process that has ended
            continue
    return pids


def _summary(runs: list[Seconds]) -> dict[str, Any]:
    totals = [run["first_step"] for run in runs]
    return {
        "first_step_seconds": round(statistics.median(totals), 2),
        "each": [round(total, 2) for total in totals],
        "part_seconds": {
            name: round(statistics.median(run[name] for run in runs), 2) for name in PARTS
        },
    }


def _train_job(client: tunesmith.Client, file_id: str) -> Seconds:
    """Train one job. Return the seconds of the job's phases, and `first_step`, the seconds until
    our watcher receives the first step."""
    began = time.monotonic()
    job = client.fine_tuning.jobs.create(
        model=BASE_MODEL,
        training_file=file_id,
        recipe={"tuning": "full", "from_scratch": True, "max_steps": 3},
    )
    seconds: Seconds = {}
    for event in job.stream():
        phase, duration = event.data.get("phase"), event.data.get("seconds")
        if event.kind == "phase" and isinstance(duration, int | float):
            seconds[str(phase)] = float(duration)
        if event.kind == "metrics" and "first_step" not in seconds:
            seconds["first_step"] = time.monotonic() - began
    ended = client.fine_tuning.jobs.retrieve(job.id)
    if ended.status != "succeeded":
        raise RuntimeError(f"{job.id} {ended.status}: {ended.error and ended.error.message}")
    return seconds
