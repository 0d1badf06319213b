"""Events and metrics: in order, without gaps, in OpenAI's form."""

from __future__ import annotations

from typing import Any

import pytest
from httpx2 import Response

from tunesmith_schema import MAX_EVENTS_PER_REPORT

from .actors import Server
from .callers import event, metrics


@pytest.fixture
def claim(server: Server) -> dict[str, Any]:
    server.create_job(server.good_file())
    return server.worker.claim()


def events_of(server: Server, claim: dict[str, Any], **params: Any) -> list[dict[str, Any]]:
    path = f"/v1/fine_tuning/jobs/{claim['job_id']}/events"
    found: list[dict[str, Any]] = server.user.json(
        path, params={"order": "asc", "limit": 1000, **params}
    )["data"]
    return found


def points_of(server: Server, claim: dict[str, Any]) -> dict[int, dict[str, float | None]]:
    page = server.user.json(f"/v1/fine_tuning/jobs/{claim['job_id']}/metrics")
    return {point["step"]: point["values"] for point in page["data"]}


def test_events_are_numbered_without_gaps(server: Server, claim: dict[str, Any]) -> None:
    server.worker.report(claim, events=[event(number) for number in (1, 2, 3)])
    server.worker.report(claim, events=[event(4)], outcome={"state": "cancelled"})
    numbers = [item["seq"] for item in events_of(server, claim)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_every_change_of_state_is_an_event(server: Server, claim: dict[str, Any]) -> None:
    server.worker.report(claim, outcome={"state": "released"})
    server.worker.succeed(server.worker.claim())
    states = [item["data"]["state"] for item in events_of(server, claim) if item["kind"] == "state"]
    assert states == ["queued", "running", "queued", "running", "succeeded"]


def test_an_event_has_openais_form(server: Server, claim: dict[str, Any]) -> None:
    server.worker.report(
        claim,
        events=[
            event(1, "chose 4", kind="choice", level="warn", data={"name": "batch", "value": 4}),
            metrics(2, 1, train_loss=2.0),
        ],
    )
    choice, step = events_of(server, claim)[-2:]
    assert choice["object"] == "fine_tuning.job.event"
    assert choice["id"].startswith("ftevent-")
    assert (choice["level"], choice["type"], choice["kind"]) == ("warn", "message", "choice")
    assert choice["created_at"] == 1_700_000_000
    assert choice["data"] == {"name": "batch", "value": 4}
    assert (step["type"], step["data"]) == ("metrics", {"step": 1, "train_loss": 2.0})


def test_metrics_are_kept_by_step(server: Server, claim: dict[str, Any]) -> None:
    server.worker.report(claim, events=[metrics(1, 1, train_loss=3.0, grad_norm=None)])
    server.worker.report(claim, events=[metrics(2, 2, train_loss=2.0), metrics(3, 2, valid_loss=4)])
    assert points_of(server, claim) == {
        1: {"train_loss": 3.0, "grad_norm": None},
        2: {"train_loss": 2.0, "valid_loss": 4.0},
    }


def test_a_step_said_again_overwrites(server: Server, claim: dict[str, Any]) -> None:
    server.worker.report(claim, events=[metrics(1, 1, train_loss=3.0)])
    server.worker.report(claim, events=[metrics(2, 1, train_loss=2.5)])
    assert points_of(server, claim) == {1: {"train_loss": 2.5}}


def test_an_attempt_that_goes_on_from_a_step_does_the_later_ones_anew(
    server: Server, claim: dict[str, Any]
) -> None:
    first = [metrics(number, number, train_loss=9.0) for number in (1, 2, 3)]
    server.worker.report(claim, events=first, outcome={"state": "released"})
    again = server.worker.claim()
    assert again["step"] == 3
    assert len(points_of(server, claim)) == 3, "until the attempt's first step is known"
    server.worker.report(again, events=[event(1, kind="resumed", data={"step": 1})])
    assert server.job(claim["job_id"])["step"] == 1
    server.worker.report(again, events=[metrics(2, 2, train_loss=1.0)])
    assert points_of(server, claim) == {1: {"train_loss": 9.0}, 2: {"train_loss": 1.0}}
    assert server.job(claim["job_id"])["step"] == 2


def test_what_is_no_number_is_no_metric(server: Server, claim: dict[str, Any]) -> None:
    data = {"step": 1, "total_steps": 9, "train_loss": 1.0, "note": "hi", "list": [1]}
    server.worker.report(claim, events=[event(1, kind="metrics", data=data)])
    assert points_of(server, claim) == {1: {"train_loss": 1.0}}


def test_nan_leaves_the_server_as_null(server: Server, claim: dict[str, Any]) -> None:
    body = (
        '{"worker_id": "worker-1", "attempt": 1, "fence": 1, "events": [{"source_seq": 1,'
        ' "created_at": 1, "message": "m", "kind": "metrics",'
        ' "data": {"step": 1, "a": NaN, "b": Infinity}}]}'
    )
    reply: Response = server.worker.post(
        f"/internal/jobs/{claim['job_id']}/report",
        content=body,
        headers={"content-type": "application/json"},
    )
    assert reply.status_code == 200
    assert points_of(server, claim) == {1: {"a": None, "b": None}}
    assert events_of(server, claim)[-1]["data"] == {"step": 1, "a": None, "b": None}


def test_a_long_history_is_read_whole(server: Server, claim: dict[str, Any]) -> None:
    count = MAX_EVENTS_PER_REPORT
    batch = [metrics(number, number, train_loss=1.0) for number in range(1, count + 1)]
    server.worker.report(claim, events=batch)
    assert list(points_of(server, claim)) == list(range(1, count + 1))
    assert len(events_of(server, claim)) == count + 3


@pytest.mark.parametrize("name", ["events", "metrics", "checkpoints"])
def test_an_unknown_job_tells_nothing(server: Server, name: str) -> None:
    assert server.user.get(f"/v1/fine_tuning/jobs/ftjob-none/{name}").status_code == 404


def test_a_checkpoint_is_listed_with_its_adapter(server: Server, claim: dict[str, Any]) -> None:
    files = server.worker.store(claim, {"adapter_model.safetensors": b"12345"})
    checkpoint = event(
        1, "step 2 saved", kind="checkpoint", files=files,
        data={"step": 2, "directory": "checkpoints/2", "metrics": {"train_loss": 1.5}},
    )  # fmt: skip
    server.worker.report(claim, events=[checkpoint])
    path = f"/v1/fine_tuning/jobs/{claim['job_id']}/checkpoints"
    [listed] = server.user.json(path)["data"]
    assert (listed["step_number"], listed["metrics"]["train_loss"]) == (2, 1.5)
    assert listed["fine_tuned_model_checkpoint"].endswith(":ckpt-step-2")
    adapter = server.user.json(f"/v1/adapters/{listed['adapter_id']}")
    assert (adapter["bytes"], adapter["step"]) == (5, 2)
    told = events_of(server, claim)[-1]
    assert told["data"]["adapter_id"] == listed["adapter_id"]
    assert "directory" not in told["data"], "a path on the worker's host is not shown"


def test_a_checkpoint_of_a_later_attempt_replaces_the_earlier_one(
    server: Server, claim: dict[str, Any]
) -> None:
    for content in (b"first", b"second!"):
        files = server.worker.store(claim, {"a.safetensors": content})
        checkpoint = event(1, kind="checkpoint", data={"step": 1}, files=files)
        server.worker.report(claim, events=[checkpoint], outcome={"state": "released"})
        claim = server.worker.claim()
    path = f"/v1/fine_tuning/jobs/{claim['job_id']}/checkpoints"
    [listed] = server.user.json(path)["data"]
    adapter = f"/v1/adapters/{listed['adapter_id']}/content/a.safetensors"
    assert server.user.get(adapter).content == b"second!"
