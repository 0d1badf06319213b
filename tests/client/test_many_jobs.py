"""Following many jobs over one stream, and comparing them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tunesmith import APIConnectionError, NotFoundError
from tunesmith_schema import Event
from tunesmith_schema.progress import JobProgress

from .fakes import Breaking, Clock, Script, client_of, job, refusal


def message(kind: str, position: str, **data: Any) -> bytes:  # Any: JSON
    return f"event: {kind}\ndata: {json.dumps(data)}\nid: {position}\n\n".encode()


def event(job_id: str, seq: int, position: str) -> bytes:
    fields = {"id": f"ftevent-{seq}", "created_at": 1, "message": "m", "seq": seq}
    return message("event", position, **fields, job_id=job_id)


def done(job_id: str, position: str) -> bytes:
    return message("done", position, **{**job("succeeded"), "id": job_id})


def test_events_of_all_jobs_arrive_once_until_the_last_job_ends() -> None:
    script = Script(
        httpx.Response(
            200, stream=Breaking(b": ping\n\n" + event("a", 3, "a:3,b:0"), b"event: event\ndata: {")
        ),
        httpx.ConnectError("restarting"),
        refusal(503),
        httpx.Response(200, content=done("a", "a:done,b:0") + event("b", 1, "a:done,b:1")),
        httpx.Response(200, content=done("b", "a:done,b:done")),
    )
    client = client_of(script)
    items = list(client.fine_tuning.stream({"a": 2, "b": 0}))
    told = [(one.job_id, one.seq) if isinstance(one, Event) else one.id for one in items]
    assert told == [("a", 3), "a", ("b", 1), "b"]
    asked = [request.url.params["jobs"] for request in script.requests]
    assert asked == ["a:2,b:0", *["a:3,b:0"] * 3, "a:done,b:1"]


def test_progress_of_all_jobs_goes_on_after_a_restart() -> None:
    progress = {"id": "a", "state": "running", "step": 3, "last_metrics": {}}
    script = Script(
        httpx.Response(
            200, content=message("job", "*:17", **progress) + b"event: new\ndata: x\n\n"
        ),
        httpx.Response(200, content=message("job", "*:18", **progress | {"step": 4})),
        refusal(404),
    )
    coming = client_of(script).fine_tuning.stream(everything=True)
    found = [next(coming), next(coming)]
    assert [one.step for one in found if isinstance(one, JobProgress)] == [3, 4]
    with pytest.raises(NotFoundError):
        next(coming)
    asked = [request.url.params["jobs"] for request in script.requests]
    assert asked == ["*", "*:17", "*:18"]


def test_following_many_jobs_ends_after_five_minutes_without_a_server() -> None:
    clock = Clock()
    with pytest.raises(APIConnectionError, match="following jobs"):
        list(client_of(Script(httpx.ConnectError("down")), clock).fine_tuning.stream(["a"]))
    assert 300 < clock.time - 1000 < 400


def test_a_comparison_names_its_jobs_and_axis() -> None:
    found = {
        "jobs": [], "settings": {"seed": [1, 2]}, "automatic": {}, "axis": "hours", "curves": {},
    }  # fmt: skip
    script = Script(httpx.Response(200, json=found))
    comparison = client_of(script).fine_tuning.compare(["a", "b"], axis="hours", first=3)
    assert comparison.settings == {"seed": [1, 2]}
    assert dict(script.requests[0].url.params) == {"jobs": "a,b", "axis": "hours", "from": "3"}
