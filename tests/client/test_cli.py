"""Command line: keys, errors, files, adapters, models, and the commands of other parts."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest

from tunesmith._cli import server_and_worker

from .conftest import Tunesmith
from .fakes import page
from .local_server import LocalServer

FILE = {
    "id": "file-1",
    "bytes": 4,
    "created_at": 1_700_000_000,
    "filename": "rows.jsonl",
    "purpose": "fine-tune",
    "status": "processed",
    "sha256": hashlib.sha256(b"rows").hexdigest(),
    "validation": {"ok": True, "format": "text", "rows": 12},
}
ADAPTER = {
    "id": "adp-1",
    "created_at": 1_700_000_000,
    "job_id": "ftjob-1",
    "model": "ft:tiny:x",
    "base_model": "tiny",
    "kind": "lora",
    "step": 9,
    "bytes": 4,
    "files": [{"name": "weights", "bytes": 4, "sha256": FILE["sha256"]}],
}


def test_the_key_comes_from_option_environment_or_the_data_directory(
    tunesmith: Tunesmith,
    server: LocalServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.answers["GET /v1/models"] = page()
    tunesmith("--api-key", "sk-option", "models", "list")
    tunesmith("models", "list")
    monkeypatch.delenv("TUNESMITH_API_KEY")
    (tmp_path / ".tunesmith").mkdir()
    (tmp_path / ".tunesmith" / "api-key").write_text("sk-file\n")
    tunesmith("models", "list")
    assert [seen.key for seen in server.seen] == [
        "Bearer sk-option",
        "Bearer sk-env",
        "Bearer sk-file",
    ]


def test_a_missing_key_is_an_error_that_names_both_sources(
    tunesmith: Tunesmith, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TUNESMITH_API_KEY")
    done = tunesmith("models", "list")
    assert done.exit_code == 2
    assert "TUNESMITH_API_KEY" in done.stderr
    assert ".tunesmith/api-key" in done.stderr


def test_a_misspelled_variable_causes_a_warning(
    tunesmith: Tunesmith, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["GET /v1/models"] = page()
    monkeypatch.setenv("TUNESMITH_BASE_ULR", "http://elsewhere.test/v1")
    done = tunesmith("models", "list")
    assert done.exit_code == 0
    assert done.stderr == (
        "warning: TUNESMITH_BASE_ULR is not a setting and has no effect: "
        "did you mean TUNESMITH_BASE_URL?\n"
    )


def test_a_refusal_shows_message_hint_and_request_id(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    body = {"error": {"message": "no such job", "type": "t", "hint": "list them"}}
    server.answers["GET /v1/fine_tuning/jobs/ftjob-9"] = (404, body)
    done = tunesmith("jobs", "show", "ftjob-9")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr == "error: no such job\nhint: list them\nrequest id: req-1\n"


def test_an_unknown_verb_is_a_usage_error(tunesmith: Tunesmith) -> None:
    assert tunesmith("jobs", "frobnicate").exit_code == 2


def test_files_are_uploaded_and_shown(
    tunesmith: Tunesmith, server: LocalServer, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text("rows")
    server.answers["POST /v1/files"] = {**FILE, "status": "uploaded"}
    server.answers["GET /v1/files/file-1"] = FILE
    done = tunesmith("files", "upload", "rows.jsonl", "--wait", "--json")
    assert json.loads(done.stdout) == FILE
    assert b'filename="rows.jsonl"' in server.seen[1].body
    assert "12" in tunesmith("files", "show", "file-1").stdout
    server.answers["GET /v1/files"] = page(FILE)
    assert "rows.jsonl" in tunesmith("files", "list").stdout


def test_an_upload_that_fails_validation_fails_the_command(
    tunesmith: Tunesmith, server: LocalServer, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text("rows")
    bad = {**FILE, "status": "error", "status_details": "row 3: no JSON", "validation": None}
    server.answers["POST /v1/files"] = server.answers["GET /v1/files/file-1"] = bad
    done = tunesmith("files", "upload", "rows.jsonl", "--wait")
    assert done.exit_code == 1
    assert "error: rows.jsonl is not usable: row 3: no JSON" in done.stderr


def test_a_missing_file_is_named_without_traceback(tunesmith: Tunesmith) -> None:
    done = tunesmith("files", "upload", "missing.jsonl")
    assert done.exit_code == 1
    assert done.stderr == "error: file not found: missing.jsonl\n"


def test_a_file_is_downloaded_under_a_plain_name(
    tunesmith: Tunesmith, server: LocalServer, tmp_path: Path
) -> None:
    server.answers["GET /v1/files/file-1"] = {**FILE, "filename": "../../evil.jsonl"}
    server.answers["GET /v1/files/file-1/content"] = b"rows"
    assert tunesmith("files", "download", "file-1").exit_code == 0
    assert (tmp_path / "evil.jsonl").read_bytes() == b"rows"
    again = tunesmith("files", "download", "file-1")
    assert again.exit_code == 1
    assert "exists already" in again.stderr
    assert tunesmith("files", "download", "file-1", "-o", "other").exit_code == 0


def test_files_are_deleted(tunesmith: Tunesmith, server: LocalServer) -> None:
    server.answers["DELETE /v1/files/file-1"] = {"id": "file-1", "deleted": True}
    assert tunesmith("files", "delete", "file-1").stdout == "deleted file-1\n"


def test_adapters_are_shown_and_downloaded(
    tunesmith: Tunesmith, server: LocalServer, tmp_path: Path
) -> None:
    server.answers["GET /v1/adapters/adp-1"] = ADAPTER
    server.answers["GET /v1/adapters/adp-1/content/weights"] = b"rows"
    assert "ft:tiny:x" in tunesmith("adapters", "show", "adp-1").stdout
    server.answers["GET /v1/adapters/adp-1"] = {**ADAPTER, "verified": True}
    assert "verified    yes" in tunesmith("adapters", "show", "adp-1").stdout
    done = tunesmith("adapters", "download", "adp-1", "out")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "weights").read_bytes() == b"rows"


def test_models_are_listed(tunesmith: Tunesmith, server: LocalServer) -> None:
    model = {"id": "ft:tiny:x", "created": 1, "owned_by": "tunesmith", "base_model": "tiny"}
    server.answers["GET /v1/models"] = {"object": "list", "data": [model]}
    assert "ft:tiny:x" in tunesmith("models", "list").stdout
    assert json.loads(tunesmith("models", "list", "--json").stdout)["data"] == [model]


@pytest.mark.parametrize(
    ("verb", "module"),
    [
        ("serve", ["tunesmith_server", "serve"]),
        ("api", ["tunesmith_server", "api"]),
        ("migrate", ["tunesmith_server", "migrate"]),
        ("gc", ["tunesmith_server", "gc"]),
        ("keys", ["tunesmith_server", "keys"]),
        ("worker", ["tunesmith_worker", "worker"]),
        ("demo", ["tunesmith_worker", "demo"]),
        ("run", ["tunesmith_worker.trainer"]),
    ],
)
def test_commands_of_other_parts_exec_with_unchanged_arguments(
    verb: str, module: list[str], tunesmith: Tunesmith, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, argv: started.append([program, *argv]))
    monkeypatch.setattr(server_and_worker, "find_spec", lambda name: object())
    arguments = ["dir", "--port", "80", "--help", "-v", "--name=x", "list"]
    assert tunesmith(verb, *arguments).exit_code == 0
    assert started == [[sys.executable, sys.executable, "-m", *module, *arguments]]


def test_an_adapter_is_verified_by_the_worker(
    tunesmith: Tunesmith, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, argv: started.append(argv))
    monkeypatch.setattr(server_and_worker, "find_spec", lambda name: object())
    assert tunesmith("adapters", "verify", "out", "--base", "tiny", "--json").exit_code == 0
    program = [sys.executable, "-m", "tunesmith_worker.engine.verify"]
    assert started == [[*program, "out", "--base", "tiny", "--json"]]
    monkeypatch.setattr(server_and_worker, "find_spec", lambda name: None)
    done = tunesmith("adapters", "verify", "out")
    assert done.exit_code == 2
    assert "needs torch and transformers and peft, which are not installed" in done.stderr
    assert "pip install 'tunesmith[worker]'" in done.stderr


@pytest.mark.parametrize(("verb", "extra"), [("serve", "server"), ("run", "worker")])
def test_a_part_that_is_not_installed_is_named_with_its_extra(
    verb: str, extra: str, tunesmith: Tunesmith, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_and_worker, "find_spec", lambda name: None)
    done = tunesmith(verb)
    assert done.exit_code == 2
    assert f"pip install 'tunesmith[{extra}]'" in done.stderr
