"""Reports: tied to the worker, the attempt and the fence, with event numbers that have no gap."""

from __future__ import annotations

from typing import Any

import pytest

from .actors import Server
from .callers import event


@pytest.fixture
def claim(server: Server) -> dict[str, Any]:
    server.create_job(server.good_file())
    return server.worker.claim()


def stored(server: Server, claim: dict[str, Any]) -> list[str]:
    return [text for text in server.messages(claim["job_id"]) if text.startswith("event ")]


def events(*numbers: int) -> list[dict[str, Any]]:
    return [event(number, f"event {number}") for number in numbers]


@pytest.mark.parametrize(
    ("numbers", "kept"),
    [((2,), 0), ((1, 3), 1), ((1, 2, 2), 2), ((2, 1), 0), ((10**15,), 0), ((1, 2, 4, 3), 2)],
)
def test_events_after_a_gap_are_kept_by_the_worker(
    server: Server, claim: dict[str, Any], numbers: tuple[int, ...], kept: int
) -> None:
    """The worker still gets its command, and sends the events again in order."""
    server.ask(claim["job_id"], "cancel")
    reply = server.worker.report(claim, events=events(*numbers))
    assert (reply["control"], reply["accepted_seq"]) == ("cancel", kept)
    assert server.worker.report(claim, events=events(1, 2, 3))["accepted_seq"] == 3
    assert stored(server, claim) == ["event 1", "event 2", "event 3"]


def test_events_that_are_sent_again_are_skipped(server: Server, claim: dict[str, Any]) -> None:
    server.worker.report(claim, events=events(1, 2))
    assert server.worker.report(claim, events=events(1, 2, 3, 4))["accepted_seq"] == 4
    assert server.worker.report(claim, events=events(2, 3))["accepted_seq"] == 4
    assert stored(server, claim) == [f"event {number}" for number in range(1, 5)]


@pytest.mark.parametrize("change", [{"worker_id": "worker-2"}, {"attempt": 2}, {"fence": 2}])
@pytest.mark.parametrize("ended", [False, True])
def test_a_fence_belongs_to_one_worker_and_attempt(
    server: Server, claim: dict[str, Any], change: dict[str, Any], ended: bool
) -> None:
    """A worker that guesses or finds a fence cannot report with it."""
    if ended:
        server.worker.succeed(claim)
    outcome = {"state": "cancelled"}
    for fields in ({"events": events(1)}, {"outcome": outcome}):
        reply = server.worker.report_reply(claim, **{**fields, **change})
        by_credential = "worker_id" in change  # refused before the fence is looked at
        assert reply.status_code == (401 if by_credential else 409)
        code = "invalid_api_key" if by_credential else "fenced_out"
        assert reply.json()["error"]["code"] == code
    assert server.job(claim["job_id"])["state"] == ("succeeded" if ended else "running")
