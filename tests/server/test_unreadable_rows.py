"""Rows that this version cannot read: one such row never stops the queue, the janitor or a list."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Text, cast, literal, text, update

from tunesmith_schema import JobState
from tunesmith_server.models import AdapterRow, CheckpointRow, EventRow, FileRow, ReportRow

from .actors import Server
from .callers import event
from .test_run_reports import run_report

RECIPE = {"tuning": "lora", "lora": {"r": 0}, "save_total_limit": 2}
BAD_COLUMNS: dict[str, dict[str, Any]] = {
    "a value out of its range": {"recipe": RECIPE},
    "a list for an object": {"recipe": []},
    "no recipe": {"recipe": None},
    "hyperparameters without a field": {"hyperparameters": {"n_epochs": 1}},
    "hyperparameters of another kind": {"hyperparameters": 7},
    "a method without its grader": {"method": {"type": "reinforcement"}},
    "an error of another shape": {"error": [1]},
    "labels of another shape": {"labels": {"team": 3}},
}
CLAIM_IGNORES = {"an error of another shape", "labels of another shape"}
PATH = "/v1/fine_tuning/jobs"


@pytest.mark.parametrize("damage", sorted(BAD_COLUMNS))
def test_a_bad_row_is_shown_among_good_ones(server: Server, damage: str) -> None:
    file_id = server.good_file()
    older, bad, newer = (server.create_job(file_id) for _ in range(3))
    server.change_job(bad, **BAD_COLUMNS[damage])
    listed = server.user.json(PATH)["data"]
    assert [job["id"] for job in listed] == [newer, bad, older]
    assert [job["error"] for job in listed][::2] == [None, None]
    shown = listed[1]
    assert shown["error"]["code"] == "unreadable"
    assert shown["error"]["message"]
    assert shown["error"]["hint"]
    job = server.job(bad)
    null_in_a_list = {"queue_position", "waiting_because", "estimated_start"}
    compared = job.keys() & shown.keys() - null_in_a_list
    assert {name: job[name] for name in compared} == {name: shown[name] for name in compared}


@pytest.mark.parametrize("damage", sorted(set(BAD_COLUMNS) - CLAIM_IGNORES))
def test_a_bad_row_keeps_no_worker_from_the_next_job(server: Server, damage: str) -> None:
    file_id = server.good_file()
    bad, good = server.create_job(file_id), server.create_job(file_id)
    server.change_job(bad, **BAD_COLUMNS[damage])
    claimed = server.worker.claim()["job_id"]
    assert claimed == good
    job = server.job(bad)
    assert (job["status"], job["error"]["code"]) == ("failed", "unreadable")
    assert job["error"]["category"] == "infrastructure"
    assert job["error"]["hint"]
    assert server.messages(bad)[-1].startswith("failed: ")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # PostgreSQL checks JSON
def test_text_that_is_no_json_spoils_only_its_row(server: Server) -> None:
    file_id = server.good_file()
    bad, good = server.create_job(file_id), server.create_job(file_id)
    with server.database.write.begin() as session:
        session.execute(
            text("UPDATE jobs SET recipe = '{', metadata = '{' WHERE id = :id"), {"id": bad}
        )
        session.execute(text("UPDATE job_events SET data = '{' WHERE job_id = :id"), {"id": bad})
    listed = server.user.json(PATH)["data"]
    assert [job["id"] for job in listed] == [good, bad]
    assert server.user.json(PATH, params={"metadata[a]": "b"})["data"] == []
    assert server.user.json(f"{PATH}/{bad}/events")["data"]
    server.janitor().round()
    assert server.worker.claim()["job_id"] == good
    assert server.job(bad)["error"]["code"] == "unreadable"


def test_ten_bad_rows_do_not_keep_a_worker_from_the_eleventh_job(server: Server) -> None:
    file_id = server.good_file()
    bad = [server.create_job(file_id) for _ in range(10)]
    good = server.create_job(file_id)
    for job_id in bad:
        server.change_job(job_id, recipe=RECIPE)
    assert server.worker.claim()["job_id"] == good
    assert server.worker.claim_reply().status_code == 204


def test_a_job_that_cannot_even_be_failed_is_passed_over(server: Server) -> None:
    """Its event number is already taken, so no event can be added."""
    file_id = server.good_file()
    bad, good = server.create_job(file_id), server.create_job(file_id)
    server.change_job(bad, last_seq=0)
    assert server.worker.claim()["job_id"] == good


def test_a_job_whose_file_is_gone_fails_by_name(server: Server) -> None:
    file_id, other = server.good_file(), server.good_file(b"other\n")
    bad, good = server.create_job(file_id), server.create_job(other)
    with server.database.write.begin() as session:
        session.delete(session.get_one(FileRow, file_id))
    assert server.worker.claim()["job_id"] == good
    error = server.job(bad)["error"]
    assert (error["code"], error["category"]) == ("invalid_training_file", "user")
    assert file_id in error["message"]


def test_a_job_whose_base_is_gone_fails_by_name(server: Server) -> None:
    file_id = server.good_file()
    bad, good = server.create_job(file_id), server.create_job(file_id)
    server.change_job(bad, base_adapter_id="adp-gone")
    assert server.worker.claim()["job_id"] == good
    assert server.job(bad)["error"]["code"] == "base_model_gone"


def test_a_setting_of_a_newer_release_is_ignored_with_a_note(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    recipe = server.job(job_id)["recipe"] | {"warp_drive": 9, "lora": {"r": 8, "flux": True}}
    server.change_job(job_id, recipe=recipe)
    assert server.job(job_id)["error"] is None
    assert server.worker.claim()["recipe"]["lora"]["r"] == 8
    notes = [message for message in server.messages(job_id) if "warp_drive" in message]
    assert len(notes) == 1
    assert "flux" in notes[0]


def test_a_database_that_is_away_quarantines_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy.exc import OperationalError

    job_id = server.create_job(server.good_file())

    def fail(*_: object) -> None:
        raise OperationalError("SELECT", {}, Exception("the connection was closed"))

    with monkeypatch.context() as patch:
        patch.setattr("tunesmith_server.services.leasing.claims._data_file", fail)
        assert server.worker.claim_reply().status_code >= 500
    assert server.job(job_id)["state"] == "queued"
    assert server.worker.claim()["job_id"] == job_id


def test_one_bad_row_does_not_stop_the_janitor(server: Server) -> None:
    file_id = server.good_file()
    first, second = server.create_job(file_id), server.create_job(file_id)
    server.worker.claim()
    server.worker.claim()
    server.change_job(first, last_seq=0)  # no event can be added
    for job_id in (first, second):
        server.age_lease(job_id)
    assert server.take_back() == 1
    assert server.job(second)["state"] == "queued"
    job = server.job(first)
    assert (job["state"], job["error"]["code"]) == ("failed", "unreadable")


def test_a_damaged_history_does_not_hide_a_new_failure(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    server.change_job(job_id, failures=[5, {"code": "x"}])
    failure = {"category": "infrastructure", "code": "device_error", "message": "m"}
    server.worker.report(claim, outcome={"state": "failed", "error": failure})
    assert server.job(job_id)["state"] == "queued"


@pytest.mark.parametrize(
    "step",
    [
        "leases.take_back_expired",
        "waiting.update_warnings",
        "resume_points.drop_unneeded",
        "upload_completion.expire",
    ],
)
def test_a_failed_step_of_the_janitor_does_not_stop_the_others(
    server: Server, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The other steps: here, a wake-up is sent again and an expired file is deleted."""
    file_id = server.upload()
    with server.database.write.begin() as session:
        session.execute(update(FileRow).values(woken_at=1.0))
    expired = server.upload(b"old\n")
    with server.database.write.begin() as session:
        session.execute(update(FileRow).where(FileRow.id == expired).values(expires_at=1.0))
    server.wake_ups.sent.clear()

    def fail(*_: object) -> None:
        raise ValueError("bad row")

    monkeypatch.setattr(f"tunesmith_server.janitor.{step}", fail)
    janitor = server.janitor()
    janitor._may_take_back = 0.0
    janitor.round()
    assert file_id in {subject for _, subject in server.wake_ups.sent}
    assert server.user.get(f"/v1/files/{expired}").status_code == 404


def test_a_file_that_cannot_be_read_is_shown_among_good_ones(server: Server) -> None:
    files = [server.good_file(f"{n}\n".encode()) for n in range(3)]
    with server.database.write.begin() as session:
        session.execute(
            update(FileRow).where(FileRow.id == files[1]).values(validation={"ok": "perhaps"})
        )
    listed = server.user.json("/v1/files", params={"order": "asc"})["data"]
    assert [file["id"] for file in listed] == files
    assert [file["status"] for file in listed] == ["processed", "error", "processed"]
    assert "validation.ok" in listed[1]["status_details"]
    assert server.user.json(f"/v1/files/{files[1]}") == listed[1]
    assert server.create_reply(files[1]).status_code == 400


def test_an_event_of_a_newer_release_is_shown(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    with server.database.write.begin() as session:
        session.execute(update(EventRow).where(EventRow.seq == 1).values(kind="hologram"))
        session.execute(update(EventRow).where(EventRow.seq == 2).values(level="scream"))
    listed = server.user.json(f"{PATH}/{job_id}/events", params={"order": "asc"})["data"]
    assert [item["seq"] for item in listed] == [1, 2]
    assert listed[0]["kind"] == "message"
    server.ask(job_id, "cancel")
    stream = server.user.get(f"{PATH}/{job_id}/events", params={"stream": "true"})
    assert stream.text.count("event: event") == 3
    assert "event: done" in stream.text


def test_the_stream_of_a_bad_row_ends(server: Server, job_in: Callable[[JobState], str]) -> None:
    job_id = job_in(JobState.SUCCEEDED)
    server.change_job(job_id, recipe=RECIPE)
    stream = server.user.get(f"{PATH}/{job_id}/events", params={"stream": "true"}).text
    done = stream.partition("event: done\ndata: ")[2].partition("\n")[0]
    job = json.loads(done)
    assert (job["id"], job["error"]["code"]) == (job_id, "unreadable")
    assert job["status"] == "succeeded", "its result is there, whatever its recipe says"


def test_a_state_of_a_newer_release_is_shown(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    server.change_job(job_id, state="dreaming")
    job = server.user.json(PATH)["data"][0]
    assert (job["id"], job["status"], job["error"]["code"]) == (job_id, "failed", "unreadable")
    assert "dreaming" in job["error"]["message"]
    reply = server.user.post(f"{PATH}/{job_id}/cancel")
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "unreadable")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # PostgreSQL checks types
@pytest.mark.parametrize("column", ["started_at", "document_version"])
def test_text_for_a_number_is_shown_among_good_rows(server: Server, column: str) -> None:
    file_id = server.good_file()
    good, bad = server.create_job(file_id), server.create_job(file_id)
    server.change_job(bad, **{column: cast(literal("x"), Text)})
    assert {job["id"] for job in server.user.json(PATH)["data"]} == {good, bad}
    assert server.job(bad)["id"] == bad


def test_commands_on_a_bad_row_answer(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    server.change_job(job_id, recipe=RECIPE)
    assert server.ask(job_id, "cancel")["state"] == "cancelled"
    for verb in ("retry", "fork"):
        reply = server.user.post(f"{PATH}/{job_id}/{verb}")
        assert (reply.status_code, reply.json()["error"]["code"]) in (
            (400, "unreadable"),
            (400, "not_forkable"),
        )


def test_other_lists_show_their_bad_rows(server: Server) -> None:
    server.create_job(server.good_file())
    claim = server.worker.claim()
    files = server.worker.store(claim, {"a.txt": b"a"})
    data = {"step": 1, "metrics": {}}
    server.worker.report(claim, events=[event(1, kind="checkpoint", data=data, files=files)])
    server.worker.report(claim, run_report=run_report(1))
    with server.database.write.begin() as session:
        session.execute(update(CheckpointRow).values(metrics=[]))
        session.execute(update(AdapterRow).values(files=[{"name": "a.txt"}]))
        session.execute(update(ReportRow).values(content=[]))
    path = f"{PATH}/{claim['job_id']}"
    checkpoints = server.user.json(f"{path}/checkpoints")["data"]
    assert [item["step_number"] for item in checkpoints] == [1]
    reply = server.user.get(f"{path}/report")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unreadable")
    reply = server.user.get(f"/v1/adapters/{checkpoints[0]['adapter_id']}")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unreadable")
    for part in ("content", "content/a.txt"):
        reply = server.user.get(f"/v1/adapters/{checkpoints[0]['adapter_id']}/{part}")
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unreadable")
    body = {"model": checkpoints[0]["fine_tuned_model_checkpoint"], "prompt": "a"}
    reply = server.user.post("/v1/completions", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unreadable")
    assert len(server.user.json("/v1/models?checkpoints=true")["data"]) == 2


def test_content_that_the_store_has_lost_is_named(server: Server) -> None:
    file_id = server.upload()
    server.storage.delete([server.user.json(f"/v1/files/{file_id}")["sha256"]])
    reply = server.user.get(f"/v1/files/{file_id}/content")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "content_missing")
