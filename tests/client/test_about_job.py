"""`tunesmith jobs edit`, `lineage`, `self-check`, `files`, and the filters of `list` and `logs`."""

from __future__ import annotations

import json

import httpx

from .conftest import Tunesmith
from .fakes import event, job, page
from .local_server import LocalServer

JOB = "/v1/fine_tuning/jobs/ftjob-1"


def test_edit_sends_only_what_is_given(tunesmith: Tunesmith, server: LocalServer) -> None:
    server.answers[f"PATCH {JOB}"] = job()
    done = tunesmith("jobs", "edit", "ftjob-1", "--name", "slower", "--notes", "", "--unpin")
    assert done.stdout == "changed name, notes, pinned of ftjob-1\n"
    assert json.loads(server.seen[0].body) == {"name": "slower", "notes": None, "pinned": False}
    tunesmith("jobs", "edit", "ftjob-1", "--metadata", "team=a")
    assert json.loads(server.seen[1].body) == {"metadata": {"team": "a"}}
    refused = tunesmith("jobs", "edit", "ftjob-1")
    assert (refused.exit_code, len(server.seen)) == (2, 2)
    assert "nothing to change" in refused.output


def test_lineage_names_origin_forks_and_resume_points(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    server.answers[f"GET {JOB}/lineage"] = {
        "job_id": "ftjob-1", "model": "tiny", "training_file": "file-1",
        "forked_from": {"id": "ftjob-0", "state": "succeeded", "name": "first", "step": 20},
        "forks": [{"id": "ftjob-2", "state": "running", "step": 5}],
        "retries": [], "results": [],
    }  # fmt: skip
    point = {"id": "5", "step": 5, "created_at": 1_700_000_000, "bytes": 2048, "stays": False}
    server.answers[f"GET {JOB}/resume_points"] = page(point)
    shown = tunesmith("jobs", "lineage", "ftjob-1").stdout
    assert "ftjob-0 succeeded from step 20: first" in shown
    assert "ftjob-2 running from step 5" in shown
    assert "step 5, 2.0 KiB" in shown
    assert "retries" not in shown
    as_json = json.loads(tunesmith("jobs", "lineage", "ftjob-1", "--json").stdout)
    assert as_json["forks"][0]["id"] == "ftjob-2"


def test_self_check_shows_each_check(tunesmith: Tunesmith, server: LocalServer) -> None:
    server.answers[f"GET {JOB}/self_check"] = {
        "job_id": "ftjob-1", "attempt": 2, "created_at": 1, "message": "m", "seconds": 1.25,
        "checks": [{"check": "labels", "state": "not_applicable", "detail": "no rows [x]"}],
    }  # fmt: skip
    done = tunesmith("jobs", "self-check", "ftjob-1", "--attempt", "2")
    assert done.stdout.split() == [
        *("CHECK", "STATE", "DETAIL", "labels", "not", "applicable", "no", "rows", "[x]"),
        *("attempt", "2,", "1.2", "s"),
    ]
    assert httpx.URL(server.seen[0].target).params["attempt"] == "2"


def test_list_and_logs_send_their_filters(tunesmith: Tunesmith, server: LocalServer) -> None:
    server.answers["GET /v1/fine_tuning/jobs"] = page(job(name="slower"))
    done = tunesmith(
        *("jobs", "list", "--owner", "ann", "--forked-from", "ftjob-0", "--retry-of", "ftjob-9"),
        "--pinned",
    )
    assert done.exit_code == 0, done.output
    asked = dict(httpx.URL(server.seen[0].target).params)
    assert asked == {
        **{"limit": "20", "owner": "ann", "forked_from": "ftjob-0", "retry_of": "ftjob-9"},
        "pinned": "true",
    }
    server.answers[f"GET {JOB}/events"] = page(event(1, message="loss up", level="warn"))
    done = tunesmith(
        "jobs", "logs", "ftjob-1", "--level", "warn", "--kind", "message", "--text", "l"
    )
    assert "loss up" in done.stdout, done.output
    asked = dict(httpx.URL(server.seen[1].target).params)
    assert (asked["level"], asked["kind"], asked["q"]) == ("warn", "message", "l")
    refused = tunesmith("jobs", "logs", "ftjob-1", "--follow", "--text", "l")
    assert (refused.exit_code, len(server.seen)) == (2, 2)


def test_files_are_listed_and_printed(tunesmith: Tunesmith, server: LocalServer) -> None:
    path = "/v1/fine_tuning/jobs/ftjob-1/files"
    file = {
        "id": "log.txt", "object": "fine_tuning.job.file", "name": "log.txt", "kind": "log",
        "media_type": "text/plain", "bytes": None, "sha256": None, "path": f"{path}/log.txt",
    }  # fmt: skip
    server.answers[f"GET {path}"] = page(file)
    assert "log.txt" in tunesmith("jobs", "files", "ftjob-1").stdout
    assert json.loads(tunesmith("jobs", "files", "ftjob-1", "--json").stdout)["data"] == [file]
    server.answers[f"GET {path}/log.txt"] = b"one\n\x1b[2Jtwo\n"
    printed = tunesmith("jobs", "files", "ftjob-1", "log.txt").stdout
    assert printed == "one\n\\x1b[2Jtwo\n"
