"""What must hold for every job and file after the kills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from safetensors import safe_open
from sqlalchemy import create_engine, text

import tunesmith
from tunesmith_schema import TERMINAL, Event, EventKind, JobState

from .load import Track
from .recipes import ALL

Weights = dict[str, str]
"""sha256 of each file of weights, by its name."""


def weights_of(client: tunesmith.Client, job: tunesmith.Job) -> Weights:
    assert job.adapter_id is not None
    adapter = client.adapters.retrieve(job.adapter_id)
    return {f.name: f.sha256 for f in adapter.files if f.name.endswith(".safetensors")}


def job_problems(
    client: tunesmith.Client, track: Track, expected: Weights, together: int, folder: Path
) -> Iterator[str]:
    """Yield how a job differs from one that was left alone. `together`: largest number of its
    trainers at a time."""
    job = client.fine_tuning.jobs.retrieve(track.job_id)
    if track.error:
        yield f"following it failed: {track.error}"
    if job.state is not JobState.SUCCEEDED:
        yield f"{job.state}: {job.error.message if job.error else 'no error given'}"
        return
    if weights_of(client, job) != expected:
        yield "weights differ from the run that was left alone"
    yield from _unreadable(client, job, folder)
    events = list(job.stream())
    yield from _event_problems(events, track, job)
    recipe = ALL[track.recipe]
    steps = list(range(1, recipe["max_steps"] + 1))
    if (points := [point.step for point in job.metrics()]) != steps:
        yield f"steps of the metrics {_odd(points, steps)}"
    if (reported := _valid_steps(events)) != steps:
        yield f"steps of the events {_odd(reported, steps)}"
    if "grpo" in recipe and (odd := _odd_samples(job, recipe)):
        yield odd
    if together != 1:
        yield f"{together} trainers alive at the same time"


def database_problems(database_url: str, tracks: list[Track]) -> Iterator[str]:
    """Compare the rows of the jobs with what was created and with their events."""
    engine = create_engine(database_url)
    with engine.connect() as connection:
        jobs = {
            row.id: row for row in connection.execute(text("SELECT id, attempt, fence FROM jobs"))
        }
    engine.dispose()
    if jobs.keys() != {track.job_id for track in tracks}:
        yield f"{len(jobs)} jobs in the database, {len(tracks)} were created"
    for track in tracks:
        job = jobs.get(track.job_id)
        taken_back = sum("stopped reporting" in event.message for event in track.events)
        if job is not None and job.fence != job.attempt + taken_back:
            yield f"{job.id}: fence {job.fence}, {job.attempt} attempts, {taken_back} taken back"


def file_problems(client: tunesmith.Client, files: list[str], rows: int) -> Iterator[str]:
    known = Counter(file.id for file in client.files.list(limit=100))
    if known != Counter(files):
        yield f"{sum(known.values())} files on the server, {len(files)} were uploaded"
    for file_id in files:
        file = client.files.wait_for_processing(file_id, timeout=60)
        counted = file.validation.rows if file.validation else None
        if (file.status, counted) != ("processed", rows):
            yield f"{file_id}: {file.status}, {counted} rows: {file.status_details}"


def _unreadable(client: tunesmith.Client, job: tunesmith.Job, folder: Path) -> Iterator[str]:
    for file in client.adapters.download(job.id, folder / job.id).glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            if not list(tensors.keys()):
                yield f"{file.name} has no tensors"
    if client.fine_tuning.jobs.report(job.id).outcome != "succeeded":
        yield "its run report does not end with success"


def _event_problems(events: list[Event], track: Track, job: tunesmith.Job) -> Iterator[str]:
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        yield "event numbers have gaps or duplicates"
    if [event.id for event in track.events] != [event.id for event in events]:
        yield f"its follower saw {len(track.events)} of {len(events)} events"
    states = [str(e.data["state"]) for e in events if e.kind == EventKind.STATE]
    if [state for state in states if state in TERMINAL] != [JobState.SUCCEEDED]:
        yield f"reported states {states}"
    if (JobState.RUNNING, JobState.RUNNING) in pairwise(states):
        yield f"claimed while it was held: {states}"
    if (claims := states.count(JobState.RUNNING)) != job.attempt:
        yield f"{claims} claims and {job.attempt} attempts"


def _valid_steps(events: list[Event]) -> list[int]:
    """Return the steps of the metrics events, without steps that a later attempt repeated."""
    steps: list[int] = []
    for event in events:
        step = event.data.get("step")
        if event.kind == EventKind.RESUMED and isinstance(step, int):
            steps = [done for done in steps if done <= step]
        elif event.kind == EventKind.METRICS and isinstance(step, int):
            steps.append(step)
    return steps


def _odd_samples(job: tunesmith.Job, recipe: dict[str, Any]) -> str:
    """Describe the problem with the samples of a reinforcement job; empty if there is none."""
    grpo = recipe["grpo"]
    samples = list(job.samples())
    if len({sample.id for sample in samples}) != len(samples):
        return "samples are reported twice"
    drawn = range(1, recipe["max_steps"] + 1, grpo.get("num_iterations", 1))
    expected = dict.fromkeys(drawn, grpo["num_generations"] * grpo["prompts_per_step"])
    counted = Counter(sample.step for sample in samples)
    return "" if counted == expected else f"samples by step: {sorted(counted.items())}"


def _odd(steps: list[int], expected: list[int]) -> str:
    """Describe how `steps` differs from `expected`."""
    missing = sorted(set(expected) - set(steps))
    repeated = sorted({step for step in steps if steps.count(step) > 1})
    return f"(missing {missing[:5]}, repeated {repeated[:5]}, in order: {steps == sorted(steps)})"
