"""`tunesmith top`, `why`, `usage` and `worker list|drain|undrain` against a local server."""

from __future__ import annotations

import json
import time

from tunesmith._cli import workers

from .conftest import Tunesmith
from .fakes import job, page
from .local_server import LocalServer

WAITING = {
    "queue_position": 3,
    "waiting_because": {"code": "behind", "message": "2 jobs are ahead"},
}


def queue() -> dict[str, object]:
    now = int(time.time())
    start = {"at": now + 605, "earliest": now + 305, "latest": now + 1205}
    return {
        "object": "queue",
        "running": [
            {
                "id": "ftjob-1", "project": "alpha", "model": "tiny", "priority": 0,
                "interactive": False, "worker": "train@a", "started_at": now - 60,
                "estimated_end": now + 125, "step": 25, "total_steps": 100,
                "steps_per_second": 0.5,
            }
        ],
        "waiting": [
            {
                "id": None, "project": "beta", "priority": 0, "interactive": False,
                "queue_position": 1, "estimated_start": start,
            }
        ],
        "num_waiting": 1, "devices": 2, "free_devices": 1,
    }  # fmt: skip


def worker(name: str, **fields: object) -> dict[str, object]:
    return {
        "id": name, "host": "gpu-1", "device": "H200", "device_bytes": 24 * 2**30, "state": "idle",
        "last_hello": int(time.time()), "models": [], "version": "1", **fields,
    }  # fmt: skip


def test_top_prints_lanes_rates_and_the_queue(tunesmith: Tunesmith, server: LocalServer) -> None:
    server.answers["GET /v1/queue"] = queue()
    busy = worker("train@a", state="busy", job_id="ftjob-1", project="alpha")
    server.answers["GET /v1/workers"] = page(busy, worker("train@b"))
    done = tunesmith("top", "--once")
    assert done.exit_code == 0, done.output
    title, *rest = done.stdout.splitlines()
    assert title == "2 devices, 1 free, 1 jobs running, 1 waiting"
    lane = next(line for line in rest if "ftjob-1" in line)
    assert lane.split()[2:7] == ["busy", "ftjob-1", "alpha", "25/100", "0.50"]
    row = next(line.split() for line in rest if "beta" in line)
    assert row[:3] == ["1", "-", "beta"]
    assert row[3].startswith(("10:0", "9:5"))


def test_why_says_reason_place_and_range(tunesmith: Tunesmith, server: LocalServer) -> None:
    now = int(time.time())
    start = {"at": now + 605, "earliest": now + 305, "latest": now + 1205}
    path = "GET /v1/fine_tuning/jobs/ftjob-1"
    server.answers[path] = job(status="queued", state="queued", estimated_start=start, **WAITING)
    done = tunesmith("why", "ftjob-1")
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    assert "2 jobs are ahead (behind)" in text
    assert "queue position 3" in text
    assert "expected start in 10:0" in text
    at_once = dict.fromkeys(start, now)
    server.answers[path] = job(status="queued", state="queued", estimated_start=at_once, **WAITING)
    assert tunesmith("why", "ftjob-1").stdout.count("0:00") == 1, "an empty range is one time"
    server.answers[path] = job()
    assert "it does not wait" in tunesmith("why", "ftjob-1").stdout


def test_usage_prints_hours_by_group(tunesmith: Tunesmith, server: LocalServer) -> None:
    item = {"user": "ann", "day": "2026-11-23", "device_seconds": 7200.0, "lost_seconds": 360.0}
    server.answers["GET /v1/usage"] = {
        "object": "usage", "days": 7, "device_seconds": 7200.0, "lost_seconds": 360.0,
        "idle_seconds": 1800.0, "data": [item],
    }  # fmt: skip
    done = tunesmith("usage", "--days", "7", "--by", "user", "--by", "day")
    assert done.exit_code == 0, done.output
    assert ["ann", "2026-11-23", "2.00", "0.10"] in [
        line.split() for line in done.stdout.splitlines()
    ]
    assert "idle devices: 0.50" in done.stdout
    assert "group_by=user&group_by=day" in str(server.seen[0])


def test_workers_are_listed_and_drained_by_name(tunesmith: Tunesmith, server: LocalServer) -> None:
    server.answers["GET /v1/workers"] = page(worker("train@a", state="drained", reason="new disk"))
    listed = tunesmith("worker", "list")
    assert listed.exit_code == 0, listed.output
    assert "new disk" in listed.stdout
    drain = {"id": "rsv-1", "worker": "gpu-1", "starts_at": 1, "reason": "new disk"}
    server.answers["POST /v1/workers/gpu-1/drain"] = drain
    done = tunesmith("worker", "drain", "gpu-1", "--reason", "new disk")
    assert done.exit_code == 0, done.output
    assert json.loads(server.seen[-1].body) == {"reason": "new disk"}
    server.answers["DELETE /v1/workers/gpu-1/drain"] = page(drain)
    assert "takes jobs again" in tunesmith("worker", "undrain", "gpu-1").stdout


def test_a_drain_without_a_name_stays_on_this_host() -> None:
    assert workers.is_remote(["drain", "gpu-1"])
    assert not workers.is_remote(["drain", "--wait"])
    assert not workers.is_remote([])


def test_create_sends_what_the_job_asks_for(tunesmith: Tunesmith, server: LocalServer) -> None:
    server.answers["POST /v1/fine_tuning/jobs"] = job()
    asked = ("--interactive", "--label", "gpu=h100", "--priority", "-3")
    done = tunesmith("jobs", "create", "--model", "tiny", "--data", "file-1", *asked)
    assert done.exit_code == 0, done.output
    assert json.loads(server.seen[0].body)["scheduling"] == {
        "priority": -3, "interactive": True, "worker_labels": {"gpu": "h100"},
    }  # fmt: skip
