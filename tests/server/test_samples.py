"""Samples of a reinforcement job: stored by step with its events, read by page and by step."""

from __future__ import annotations

import gzip
import hashlib
import json
from datetime import timedelta
from typing import Any

import pytest

from tunesmith_server.services.results import sample_lines

from .actors import Server
from .callers import event, metrics
from .test_lists import pages


def sample(step: int, place: int, **other: Any) -> dict[str, Any]:
    return {
        "group": place // 2,
        "row": place // 2,
        "prompt": "2 + 2 =",
        "completion": f"step {step}, place {place}",
        "reward": float(place % 2),
        "scores": {"right": float(place % 2), "short": None},
        "advantage": place - 0.5,
        "prompt_tokens": 5,
        "completion_tokens": 7,
        "finish_reason": "stop",
        **other,
    }


def packed(samples: list[dict[str, Any]]) -> bytes:
    lines = "".join(json.dumps(one) + "\n" for one in samples)
    return gzip.compress(lines.encode(), mtime=0)


def told(server: Server, claim: dict[str, Any], source_seq: int, step: int, content: bytes) -> Any:
    """Event of a step whose file is stored."""
    count = len(gzip.decompress(content).splitlines())
    return event(
        source_seq,
        f"step {step}: {count} samples",
        kind="samples",
        data={"step": step, "file": "samples/x.jsonl", "count": count, "reward": 0.5},
        files=server.worker.store(claim, {"x.jsonl.gz": content}),
    )


@pytest.fixture
def claim(server: Server) -> dict[str, Any]:
    server.create_job(server.good_file())
    return server.worker.claim()


@pytest.fixture
def path(claim: dict[str, Any]) -> str:
    return f"/v1/fine_tuning/jobs/{claim['job_id']}/samples"


def fill(server: Server, claim: dict[str, Any], counts: dict[int, int]) -> list[str]:
    """Report samples, a number per step; return their completions, oldest first."""
    contents = {
        step: [sample(step, place) for place in range(count)] for step, count in counts.items()
    }
    events = [
        told(server, claim, number, step, packed(samples))
        for number, (step, samples) in enumerate(contents.items(), 1)
    ]
    server.worker.report(claim, events=events)
    return [one["completion"] for samples in contents.values() for one in samples]


def completions(server: Server, path: str, **params: Any) -> list[str]:
    found = server.user.json(path, params={"order": "asc", "limit": 100, **params})
    return [one["completion"] for one in found["data"]]


def test_a_sample_is_given_with_all_that_was_kept_of_it(
    server: Server, claim: dict[str, Any], path: str
) -> None:
    told_of = sample(12, 0, completion="vier\n\x00\U0001f600", reward=None)
    server.worker.report(claim, events=[told(server, claim, 1, 12, packed([told_of]))])
    page = server.user.json(path)
    (found,) = page["data"]
    job = claim["job_id"].removeprefix("ftjob-")
    assert found == {
        **told_of,
        "id": f"ftsample-{job}-12-0",
        "object": "fine_tuning.job.sample",
        "created_at": 1_700_000_000,
        "step": 12,
    }
    assert (page["object"], page["has_more"]) == ("list", False)
    events = server.user.json(path.replace("samples", "events"))["data"]
    (one,) = [one for one in events if one["kind"] == "samples"]
    assert one["data"] == {"step": 12, "count": 1, "reward": 0.5}


def test_pages_go_across_steps_in_both_orders(
    server: Server, claim: dict[str, Any], path: str
) -> None:
    whole = fill(server, claim, {1: 3, 2: 1, 5: 4})
    ids = [one["id"] for one in server.user.json(path, params={"order": "asc"})["data"]]
    assert completions(server, path) == whole
    for limit in (1, 2, 3, 4, 7, 8, 9):
        assert pages(server, path, limit=limit, order="asc") == ids
        assert pages(server, path, limit=limit) == ids[::-1], "newest first"


def test_a_step_can_be_asked_for(server: Server, claim: dict[str, Any], path: str) -> None:
    fill(server, claim, {1: 3, 2: 2})
    assert completions(server, path, step=2) == ["step 2, place 0", "step 2, place 1"]
    assert completions(server, path, step=7) == []
    ids = [one["id"] for one in server.user.json(path, params={"step": 1, "order": "asc"})["data"]]
    assert pages(server, path, limit=1, order="asc", step=1) == ids
    beyond = server.user.json(path, params={"step": 2, "order": "asc", "after": ids[-1]})
    assert len(beyond["data"]) == 2


def test_a_report_that_is_sent_again_doubles_nothing(
    server: Server, claim: dict[str, Any], path: str
) -> None:
    first = told(server, claim, 1, 1, packed([sample(1, 0)]))
    server.worker.report(claim, events=[first])
    server.worker.report(claim, events=[first, metrics(2, 1, reward=0.5, completion_length=7.0)])
    assert completions(server, path) == ["step 1, place 0"]
    (point,) = server.user.json(path.replace("samples", "metrics"))["data"]
    assert point["values"] == {"reward": 0.5, "completion_length": 7.0}


def test_steps_that_are_done_again_are_void_and_then_replaced(
    server: Server, claim: dict[str, Any], path: str
) -> None:
    fill(server, claim, {1: 2, 2: 2, 3: 2})
    server.worker.report(claim, outcome={"state": "released"})
    again = server.worker.claim()
    server.worker.report(again, events=[event(1, kind="resumed", data={"step": 1})])
    assert completions(server, path) == ["step 1, place 0", "step 1, place 1"]
    repeated = packed([sample(2, 0, completion="repeated")])
    server.worker.report(again, events=[told(server, again, 2, 2, repeated)])
    assert completions(server, path) == ["step 1, place 0", "step 1, place 1", "repeated"]
    stale = server.worker.report_reply(claim, events=[told(server, again, 3, 3, repeated)])
    assert stale.json()["error"]["code"] == "fenced_out"
    assert len(completions(server, path)) == 3


def test_content_stays_as_long_as_its_step_does(
    server: Server, claim: dict[str, Any], path: str
) -> None:
    void, kept = packed([sample(2, 0)]), packed([sample(1, 0)])
    events = [told(server, claim, 1, 1, kept), told(server, claim, 2, 2, void)]
    server.worker.report(claim, events=events)
    server.worker.report(claim, events=[event(3, kind="resumed", data={"step": 1})])
    server.janitor().sweep(timedelta(0))
    sizes = [server.storage.size(hashlib.sha256(one).hexdigest()) for one in (void, kept)]
    assert sizes == [None, len(kept)]
    assert completions(server, path) == ["step 1, place 0"]


def test_an_event_whose_file_is_not_in_storage_is_quarantined(
    server: Server, claim: dict[str, Any], path: str
) -> None:
    missing = [{"name": "x.jsonl.gz", "bytes": 3, "sha256": "0" * 64}]
    lost = event(1, kind="samples", data={"step": 1, "count": 1}, files=missing)
    assert server.worker.report(claim, events=[lost])["accepted_seq"] == 1
    assert "no stored content" in server.messages(claim["job_id"])[-1]
    assert completions(server, path) == []


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order"), ("step=-1", "step"),
        (f"step={2**40}", "step"), ("step=x", "step"), ("after=nonsense", "after"),
        ("after=ftsample-0123456789abcdef01234567-1-1", "after"), ("after=-1-1", "after"),
    ],
)  # fmt: skip
def test_a_wrong_question_is_refused(server: Server, path: str, query: str, param: str) -> None:
    reply = server.user.get(f"{path}?{query}")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_a_cursor_beyond_what_there_is_ends_the_list(
    server: Server, claim: dict[str, Any], path: str
) -> None:
    fill(server, claim, {1: 2})
    job = claim["job_id"].removeprefix("ftjob-")
    for step, place in ((1, 1), (1, 10**17), (2_000_000_000, 0)):
        after = f"ftsample-{job}-{step}-{place}"
        assert completions(server, path, after=after) == []


def test_who_may_not_see_the_job_sees_no_samples(server: Server, path: str) -> None:
    assert server.anonymous.get(path).status_code == 401
    unknown = "/v1/fine_tuning/jobs/ftjob-000000000000000000000000/samples"
    assert server.user.get(unknown).status_code == 404


@pytest.mark.parametrize(
    ("damage", "shown"),
    [
        ("no gzip", [False] * 4),
        ("cut", [False] * 4),
        ("lost", [False] * 4),
        ("a line is no JSON", [True, False, True, True]),
        ("a line is too long", [True, False, False, False]),
        ("lines are missing", [True, True, False, False]),
    ],
)
def test_samples_that_cannot_be_read_are_shown_as_such(
    server: Server,
    claim: dict[str, Any],
    path: str,
    damage: str,
    shown: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sample_lines, "MAX_LINE", 2000)
    lines = [json.dumps(sample(1, place)).encode() + b"\n" for place in range(4)]
    if damage == "a line is no JSON":
        lines[1] = b"{]\n"
    if damage == "a line is too long":
        lines[1] = json.dumps(sample(1, 1, completion="x" * 5000)).encode() + b"\n"
    content = gzip.compress(b"".join(lines[:2] if damage == "lines are missing" else lines))
    content = {"no gzip": b"no gzip", "cut": content[:20]}.get(damage, content)
    data = {"step": 1, "count": 4}
    files = server.worker.store(claim, {"x.jsonl.gz": content})
    server.worker.report(claim, events=[event(1, kind="samples", data=data, files=files)])
    if damage == "lost":
        server.storage.delete([files[0]["sha256"]])
    for order in ("asc", "desc"):
        found = server.user.json(path, params={"order": order})["data"]
        expected = shown if order == "asc" else shown[::-1]
        assert [one["finish_reason"] != "unreadable" for one in found] == expected
        assert [bool(one["completion"]) for one in found] == expected
        assert len({one["id"] for one in found}) == 4
