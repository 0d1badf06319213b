"""Endings of `wait()`: success, failure, cancellation, timeout."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import httpx
import pytest
from rich.console import Console

from tunesmith import (
    APIConnectionError,
    Job,
    JobCancelledError,
    JobFailedError,
    WaitTimeoutError,
)
from tunesmith._sdk.progress import ProgressView
from tunesmith_schema import Event
from tunesmith_schema import Job as WireJob

from .fakes import Clock, Script, client_of, event, job, sse

FAILURE = {
    "code": "out_of_memory",
    "category": "out_of_memory",
    "message": "out of memory at batch 8",
    "hint": "try 4",
}


def waiting(*answers: httpx.Response, clock: Clock | None = None) -> Job:
    script = Script(httpx.Response(200, json=job()), *answers)
    return client_of(script, clock).fine_tuning.jobs.retrieve("ftjob-1")


def stream(*seqs: int, **done: Any) -> httpx.Response:
    return httpx.Response(200, content=sse(*seqs, done=job(**done) if done else None))


def test_a_job_that_succeeds_is_returned_and_updated() -> None:
    watched = waiting(stream(1, 2, state="succeeded", fine_tuned_model="ft:tiny:x"))
    assert watched.wait() is watched
    assert (watched.state, watched.fine_tuned_model) == ("succeeded", "ft:tiny:x")


def test_a_job_that_is_over_is_not_asked_about_again() -> None:
    script = Script(httpx.Response(200, json=job("succeeded")))
    client_of(script).fine_tuning.jobs.retrieve("ftjob-1").wait()
    assert len(script.requests) == 1


def test_a_failed_job_raises_with_its_reason() -> None:
    watched = waiting(stream(1, state="failed", error=FAILURE))
    with pytest.raises(JobFailedError, match="out of memory at batch 8") as caught:
        watched.wait()
    error = caught.value
    assert (error.code, error.category, error.hint) == ("out_of_memory", "out_of_memory", "try 4")
    assert error.job.id == "ftjob-1"
    assert watched.state == "failed"


def test_a_cancelled_job_raises_its_own_error() -> None:
    with pytest.raises(JobCancelledError, match="ftjob-1 was cancelled"):
        waiting(stream(state="cancelled")).wait()


def test_waiting_by_id_does_the_same() -> None:
    script = Script(stream(1, state="failed", error=FAILURE))
    with pytest.raises(JobFailedError):
        client_of(script).fine_tuning.jobs.wait("ftjob-1")


def test_a_wait_ends_in_time_while_the_job_continues() -> None:
    clock = Clock()
    with pytest.raises(WaitTimeoutError, match="did not end within 30 s") as caught:
        waiting(stream(1), clock=clock).wait(timeout=30)
    assert isinstance(caught.value, TimeoutError)
    assert clock.time == 1030


def test_a_wait_for_a_paused_job_says_what_it_waits_for() -> None:
    paused = json.dumps(event(1, kind="state", data={"state": "paused"}))
    content = f"event: event\ndata: {paused}\n\n".encode()
    with pytest.raises(WaitTimeoutError, match="within 30 s and is paused") as caught:
        waiting(httpx.Response(200, content=content)).wait(timeout=30)
    assert "client.fine_tuning.jobs.resume('ftjob-1')" in str(caught.value)


def test_heartbeats_alone_do_not_hold_a_wait_past_its_time() -> None:
    clock = Clock()

    def answer(request: httpx.Request) -> httpx.Response:
        clock.time += 20
        return httpx.Response(200, content=b": ping\n\n")

    with pytest.raises(WaitTimeoutError):
        client_of(answer, clock).fine_tuning.jobs.wait("ftjob-1", timeout=30)


def test_progress_is_drawn_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    waiting(stream(1, state="succeeded")).wait(progress=True)
    assert capsys.readouterr().out == ""


def test_the_bar_shows_step_loss_speed_and_time_left() -> None:
    out = io.StringIO()
    view = ProgressView(Console(file=out, width=80))
    now = int(time.time())
    with view:
        view.show(event_of(1, kind="state", data={"state": "running"}))
        for seq, (step, at) in enumerate([(10, now - 50), (20, now)], start=2):
            data = {
                "step": step,
                "total_steps": 100,
                "train_loss": 1.25,
                "tokens_per_second": 3210.0,
            }
            view.show(event_of(seq, kind="metrics", data=data, created_at=at))
    line = out.getvalue()
    assert "running" in line
    assert "20/100  loss 1.25  3.2k tok/s  ETA 6:" in line


def test_the_bar_of_a_reinforcement_job_shows_rewards_in_place_of_the_loss() -> None:
    out = io.StringIO()
    view = ProgressView(Console(file=out, width=80))
    values = {"reward": 0.4123, "reward_std": 0.222, "completion_length": 118.4, "train_loss": 0.01}
    now = int(time.time())
    with view:
        view.show(event_of(1, kind="state", data={"state": "running"}))
        for seq, (step, at) in enumerate([(10, now - 50), (20, now)], start=2):
            data = {"step": step, "total_steps": 100, "tokens_per_second": 9.0, **values}
            view.show(event_of(seq, kind="metrics", data=data, created_at=at))
    assert "20/100  reward 0.412 ± 0.22  118 tok  ETA 6:" in out.getvalue()
    assert "loss" not in out.getvalue()


def test_a_queued_job_shows_its_state_and_no_old_numbers() -> None:
    out = io.StringIO()
    view = ProgressView(Console(file=out, width=80))
    with view:
        view.show(event_of(1, kind="metrics", data={"step": 3, "train_loss": None}))
        view.show(event_of(2, kind="state", data={"state": "queued"}))
    assert out.getvalue().splitlines()[-1].endswith("queued")
    assert "loss" not in out.getvalue()


def test_the_view_shows_phase_queue_warnings_and_a_lost_connection() -> None:
    out = io.StringIO()
    view = ProgressView(Console(file=out, width=80))
    started = {"started_at": int(time.time()) - 62}
    with view:
        because = {"code": "behind", "message": "2 jobs are ahead"}
        waiting = {"queue_position": 3, "waiting_because": because}
        view.show_job(WireJob.model_validate(job("queued", **waiting)))
        view.show_job(WireJob.model_validate(job("running", phase="self_check", **started)))
        view.show(event_of(1, message="reward spread is low", level="warn"))
        view.show_connection(APIConnectionError("refused"))
        view.show_connection(None)
    lines = out.getvalue().splitlines()
    assert lines[0].endswith("queued: number 3, 2 jobs are ahead")
    assert lines[1].startswith("1:02  self check")
    assert lines[2] == "warning: reward spread is low"
    assert lines[3].endswith("connection lost, retrying")
    assert lines[4].endswith("self check")


@pytest.mark.parametrize("how", ["stop requested", "ended", "paused"])
def test_a_job_that_will_not_go_on_shows_no_eta(how: str) -> None:
    out = io.StringIO()
    now = int(time.time())
    with ProgressView(Console(file=out, width=80)) as view:
        for seq, step in enumerate([10, 20], start=1):
            data = {"step": step, "total_steps": 100, "train_loss": 1.0}
            view.show(event_of(seq, kind="metrics", data=data, created_at=now - 50 + 2 * step))
        if how == "stop requested":
            view.show_job(WireJob.model_validate(job("running", stop_requested=True)))
        else:
            state = {"ended": "succeeded", "paused": "paused"}[how]
            view.show(event_of(3, kind="state", data={"state": state}))
        line = " ".join(view._numbers())
    assert line.startswith("20/100")
    assert "ETA" not in line


def test_a_lost_connection_is_told_while_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    watched = waiting(
        httpx.Response(200, content=sse(1)), httpx.Response(502), stream(2, state="succeeded")
    )
    watched.wait(progress=True)
    assert "connection lost, retrying" in capsys.readouterr().err


def test_the_bar_says_that_a_job_is_paused() -> None:
    out = io.StringIO()
    view = ProgressView(Console(file=out, width=80))
    with view:
        view.show(event_of(1, kind="state", data={"state": "paused"}))
    assert "paused until resumed" in out.getvalue()


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_the_spinner_stops_when_the_job_has_ended(state: str) -> None:
    def spins(last: str) -> bool:
        out = io.StringIO()
        with ProgressView(Console(file=out, width=80, force_terminal=True)) as view:
            view.show(event_of(1, kind="metrics", data={"step": 3, "total_steps": 9}))
            view.show(event_of(2, kind="state", data={"state": last}))
        last_line = out.getvalue().rpartition("\r")[2]
        return any("\u2800" <= one <= "\u28ff" for one in last_line)

    assert spins("running")
    assert not spins(state)


def event_of(seq: int, **fields: Any) -> Event:
    return Event.model_validate(event(seq, **fields))
