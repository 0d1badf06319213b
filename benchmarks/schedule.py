"""Measure the fairness of the queue: `python -m benchmarks.schedule [--seed N] [--only PART ...]`.

A claim is the request by which a worker takes a job. The benchmark simulates a week of jobs with
the real claim code and a virtual clock, and measures the cost of a claim with 10,000 queued jobs.
Prints one JSON line. docs/reference/benchmarks.md explains each result.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.stacks import PostgreSQL, postgresql_server

from tunesmith_server import migrate
from tunesmith_server.core.database import Database
from tunesmith_server.core.settings import Settings

from .schedule_parts.claim_cost import measure as measure_claims
from .schedule_parts.clock import Clock
from .schedule_parts.figures import figures
from .schedule_parts.week import GIB, Week, draw
from .schedule_parts.world import LEASE_SECONDS, START, Record, World
from .service_parts.machine import facts

DEVICES = (24 * GIB,) * 8 + (48 * GIB,) * 5 + (80 * GIB,) * 3


def full_week(weights: tuple[float, ...], seed: int) -> Week:
    """Return a week with 50 users in 10 projects, 16 devices of three sizes, and 2,000 jobs."""
    return draw(
        seed=seed, hours=168.0, weights=weights, devices=DEVICES, num_jobs=2000, load=1.2,
        users=50, deaths=40,
    )  # fmt: skip


def play(week: Week, folder: Path, estimates_every: float | None = None) -> Record:
    """Simulate a week on a new SQLite database in `folder`."""
    url = f"sqlite:///{folder / 'tunesmith.db'}"
    migrate.upgrade(url)
    settings = Settings(
        data_dir=folder, database_url=url, broker_url="memory://", lease_seconds=LEASE_SECONDS
    )
    database, clock = Database(url), Clock(START)
    try:
        with clock.governs(database):
            return World(database, settings, week, clock).run(estimates_every)
    finally:
        database.dispose()


def _simulate(weights: tuple[float, ...], seed: int) -> dict[str, Any]:  # Any: JSON
    week, began = full_week(weights, seed), time.process_time()
    with tempfile.TemporaryDirectory(prefix="tunesmith-schedule-") as folder:
        record = play(week, Path(folder), estimates_every=4 * 3600.0)
    cpu = round(time.process_time() - began, 1)
    return figures(week, record) | {"schedule": digest(record), "cpu_seconds": cpu}


def _replay(seed: int) -> dict[str, Any]:  # Any: JSON
    with tempfile.TemporaryDirectory(prefix="tunesmith-schedule-") as folder:
        week = full_week((1.0,) * 10, seed)
        record = play(week, Path(folder))
    return figures(week, record) | {"claims": len(record.claims), "schedule": digest(record)}


def digest(record: Record) -> str:
    """Return the SHA-256 of all claims. Two runs with the same claims have the same digest."""
    return hashlib.sha256(json.dumps(record.claims).encode()).hexdigest()


def _claims(postgresql: str | None) -> list[dict[str, Any]]:  # Any: JSON
    """Measure claims on SQLite and on PostgreSQL. Without a URL, a PostgreSQL server is started."""
    with tempfile.TemporaryDirectory(prefix="tunesmith-schedule-") as folder:
        on_sqlite = measure_claims(f"sqlite:///{Path(folder) / 'tunesmith.db'}")
    if postgresql:
        return [on_sqlite, measure_claims(postgresql)]
    with postgresql_server() as url:
        server = PostgreSQL(url)
        try:
            return [on_sqlite, measure_claims(server.new_database())]
        finally:
            server.close()


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {  # Any: JSON
    "equal": lambda seed: _simulate((1.0,) * 10, seed),
    "weighted": lambda seed: _simulate((1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 4.0, 6.0), seed),
    "replay": _replay,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schedule", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--postgresql",
        metavar="URL",
        help="empty database for the measurement of claims (default: start a PostgreSQL server)",
    )
    names = [*PARTS, "claim"]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="PART")
    arguments = parser.parse_args()
    line: dict[str, Any] = {"benchmark": "schedule", "seed": arguments.seed} | facts()
    for name in arguments.only:
        if name == "claim":
            line[name] = _claims(arguments.postgresql)
        else:
            line[name] = PARTS[name](arguments.seed)
        sys.stderr.write(f"{name}: {json.dumps(line[name])}\n")
    if {"equal", "replay"} <= line.keys():
        line["same_schedule"] = line["equal"]["schedule"] == line["replay"]["schedule"]
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
