"""Results of a simulation: shares, waits, estimates, and counts of errors such as lost jobs."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median
from typing import Any

from .week import JobPlan, Week
from .world import Record

MIN_WAIT_SECONDS = 600.0
"""The median error of estimates does not count waits below this number of seconds."""


def figures(week: Week, record: Record) -> dict[str, Any]:  # Any: JSON
    """Return the results of a simulation as JSON."""
    start, end = contested(week, record)
    shares = device_time(record, len(week.weights), start, end)
    per_weight = [share / weight for share, weight in zip(shares, week.weights, strict=True)]
    total, weights = sum(shares), sum(week.weights)
    off = [
        abs(share / total / (weight / weights) - 1)
        for share, weight in zip(shares, week.weights, strict=True)
    ]
    interactive = [record.waits[job.id] for job in week.jobs if job.interactive]
    errors, inside = estimate_errors(record)
    return {
        "jobs": len(week.jobs),
        "users": week.users,
        "devices": len(week.devices),
        "deaths": len(week.deaths),
        "lost": len(week.jobs) - len(record.ends),
        "doubled": doubled(record),
        "refused_stale_reports": record.refused_reports,
        "contested_hours": round((end - start) / 3600, 1),
        "jain": round(jain(per_weight), 4),
        "worst_share_error": round(max(off), 4),
        "interactive_wait_p95_s": round(percentile(interactive, 0.95), 1) if interactive else None,
        "starved": len(starved(week, record)),
        "preemptions": len(record.preemptions),
        "preempted_again_within_10_min": preempted_too_soon(record),
        "estimates": len(errors),
        "estimate_error_median": round(median(errors), 4) if errors else None,
        "estimates_in_range": round(inside, 4),
        "machine_use": round(_use(week, record, start, end), 4),
    }


def jain(values: list[float]) -> float:
    """Return Jain's index of fairness: 1 if all values are equal."""
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


def contested(week: Week, record: Record) -> tuple[float, float]:
    """Return start and end of the time in which every project has a waiting job. The time starts at
    0 and ends when the first project starts its last long job."""
    last: dict[int, float] = defaultdict(float)
    plans = {job.id: job for job in week.jobs}
    for when, _, job_id, _ in record.claims:
        plan = plans[job_id]
        if not plan.interactive and abs(when - plan.arrives - record.waits[job_id]) < 1.0:
            last[plan.project] = max(last[plan.project], when)
    return 0.0, min(last.values())


def device_time(record: Record, projects: int, start: float, end: float) -> list[float]:
    """Return the device-seconds of each project between two times."""
    sums = [0.0] * projects
    for began, ended, project in record.busy:
        sums[project] += max(0.0, min(ended, end) - max(began, start))
    return sums


def _use(week: Week, record: Record, start: float, end: float) -> float:
    return sum(device_time(record, len(week.weights), start, end)) / (
        len(week.devices) * (end - start)
    )


def doubled(record: Record) -> int:
    """Return the number of (job, fence) pairs that were claimed more than once.

    The fence is the number of the job's claim."""
    claims = Counter((job_id, fence) for _, _, job_id, fence in record.claims)
    return sum(count > 1 for count in claims.values())


def starvation_bound(week: Week, record: Record, job: JobPlan) -> float:
    """Return the longest fair wait of a job in seconds.

    A project's share is the number of devices that it gets if the devices are divided among the
    projects in proportion to their weights. The bound is a sum of two times. The first time is
    twice the device-time of the project's jobs that start during the wait, divided by the share.
    The second time is twice the duration of the longest job.
    """
    share = week.weights[job.project] / sum(week.weights) * len(week.devices)
    began = job.arrives + record.waits[job.id]
    ahead = sum(
        other.seconds
        for other in week.jobs
        if other.project == job.project
        and job.arrives <= other.arrives + record.waits[other.id] <= began
    )
    return 2 * ahead / share + 2 * max(other.seconds for other in week.jobs)


def starved(week: Week, record: Record) -> list[str]:
    """Return the ids of the jobs that waited longer than `starvation_bound`."""
    return [
        job.id
        for job in week.jobs
        if not job.interactive and record.waits[job.id] > starvation_bound(week, record, job)
    ]


def estimate_errors(record: Record) -> tuple[list[float], float]:
    """Return the relative errors of estimated waits, and the share of starts within the estimated
    range.
    """
    starts = defaultdict(list)
    for when, _, job_id, _ in record.claims:
        starts[job_id].append(when)
    errors, inside = [], 0
    for job_id, made, at, earliest, latest in record.estimates:
        actual = next((start for start in starts[job_id] if start >= made), None)
        if actual is None or actual - made < MIN_WAIT_SECONDS:
            continue
        errors.append(abs(at - actual) / (actual - made))
        inside += earliest <= actual <= latest
    return errors, inside / len(errors) if errors else 0.0


def preempted_too_soon(record: Record) -> int:
    """Return the number of pre-emptions less than ten minutes after an earlier pre-emption of the
    same job."""
    last: dict[str, float] = {}
    count = 0
    for when, job_id in record.preemptions:
        count += job_id in last and when - last[job_id] < 600.0 - 30.0
        last[job_id] = when
    return count


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
