"""Jobs, devices, worker deaths and clock changes of a simulated week, sampled with a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

GIB = 2**30
HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """One job of the simulation."""

    id: str
    project: int
    user: int
    file: str
    """Training file; jobs with the same file take about the same time."""
    arrives: float
    """Time of the job's creation. All times are in seconds since the start of the week."""
    seconds: float
    """Device-time of the job in seconds, without interruptions."""
    device_bytes: int
    interactive: bool = False
    priority: int = 0


@dataclass(frozen=True, kw_only=True)
class Week:
    """Inputs of the simulation: projects, devices, jobs, worker deaths and clock changes."""

    hours: float
    users: int
    weights: tuple[float, ...]
    """Weight of each project."""
    devices: tuple[int, ...]
    """Memory of each device in bytes."""
    jobs: tuple[JobPlan, ...]
    deaths: tuple[tuple[float, int], ...] = ()
    """Worker deaths: pairs of a time and the index of the worker's device. Soon after a death, a
    new worker starts on the device."""
    clock_steps: tuple[tuple[float, float], ...] = field(default=())
    """Sudden changes of the wall clock: pairs of a time and a change, both in seconds."""


def draw(
    *,
    seed: int,
    hours: float,
    weights: tuple[float, ...],
    devices: tuple[int, ...],
    num_jobs: int,
    load: float,
    users: int,
    deaths: int,
    interactive_share: float = 0.1,
) -> Week:
    """Sample a week. `load`: device-time of all jobs / device-time of all devices in the week."""
    chance = random.Random(seed)
    num_short = int(num_jobs * interactive_share)
    mean = hours * HOUR * len(devices) * load / (num_jobs - num_short)
    jobs = []
    for number in range(num_jobs):
        project = _project(chance, weights, number)
        user = project + len(weights) * chance.randrange(users // len(weights))
        is_short = number >= num_jobs - num_short
        jobs.append(
            _short(chance, number, project, user, hours)
            if is_short
            else _long(chance, number, project, user, hours, mean, devices)
        )
    jobs = _spread(jobs, weights, hours * HOUR * len(devices) * load)
    return Week(
        hours=hours,
        users=users,
        weights=weights,
        devices=devices,
        jobs=tuple(sorted(jobs, key=lambda job: (job.arrives, job.id))),
        deaths=tuple(
            sorted(
                (chance.uniform(0.05, 0.95) * hours * HOUR, chance.randrange(len(devices)))
                for _ in range(deaths)
            )
        ),
        clock_steps=((0.31 * hours * HOUR, 400.0), (0.62 * hours * HOUR, -300.0)),
    )


def _project(chance: random.Random, weights: tuple[float, ...], number: int) -> int:
    if number < len(weights):
        return number
    return chance.choices(range(len(weights)), weights)[0]


def _long(
    chance: random.Random,
    number: int,
    project: int,
    user: int,
    hours: float,
    mean: float,
    devices: tuple[int, ...],
) -> JobPlan:
    kind = chance.randrange(4)
    usual = mean * (0.4, 0.7, 1.0, 1.9)[kind]
    return JobPlan(
        id=f"ftjob-{number:010d}{0:014d}",
        project=project,
        user=user,
        file=f"file-{project:02d}{kind}",
        # Most jobs come in bursts at the start; the rest come during the first half of the week.
        arrives=chance.choice((0.0, 0.0, chance.uniform(0.0, 0.5))) * hours * HOUR
        + chance.uniform(0.0, 600.0),
        seconds=usual * chance.lognormvariate(0.0, 0.12),
        device_bytes=chance.choices((min(devices), max(devices)), (0.9, 0.1))[0] - GIB,
        priority=chance.choice((0, 0, 0, 0, 5)),
    )


def _short(chance: random.Random, number: int, project: int, user: int, hours: float) -> JobPlan:
    return JobPlan(
        id=f"ftjob-{number:010d}{0:014d}",
        project=project,
        user=user,
        file=f"file-{project:02d}s",
        arrives=chance.uniform(0.02, 0.98) * hours * HOUR,
        seconds=chance.uniform(60.0, 400.0),
        device_bytes=8 * GIB,
        interactive=True,
    )


def _spread(jobs: list[JobPlan], weights: tuple[float, ...], total: float) -> list[JobPlan]:
    """Scale the long jobs so that each project asks for device-time in proportion to its weight."""
    asked = [0.0 for _ in weights]
    for job in jobs:
        asked[job.project] += 0.0 if job.interactive else job.seconds
    scale = [
        total * weight / sum(weights) / seconds
        for weight, seconds in zip(weights, asked, strict=True)
    ]
    return [
        job
        if job.interactive
        else JobPlan(**{**job.__dict__, "seconds": job.seconds * scale[job.project]})
        for job in jobs
    ]
