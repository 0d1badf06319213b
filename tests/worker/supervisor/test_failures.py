"""What the supervisor says when it is the host, the model or the server's storage that fails."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tunesmith_schema import Claim, StoredFile
from tunesmith_worker.supervisor import job_session, uploads
from tunesmith_worker.supervisor.server_api import ServerFault

from .test_disk_full import FakeApi, settings, supervised

DONE = """
import json, pathlib, sys
root = pathlib.Path(sys.argv[-1])
(root / "adapter").mkdir()
(root / "adapter" / "a.safetensors").touch()
(root / "result.json").write_text(json.dumps(
    {"outcome": "succeeded", "kind": "lora", "directory": "adapter", "step": 3}))
"""


class RefusingApi(FakeApi):
    """A server whose storage is read-only."""

    def put_blob(self, job_id: str, fence: int, path: Path) -> StoredFile:
        raise ServerFault("PUT: the server's storage refuses writes", "storage_read_only")


class GoneApi(FakeApi):
    """A server with a job on a folder that this host has no longer."""

    def claim(self, worker_id: str) -> Claim | None:
        claim = super().claim(worker_id)
        return claim and claim.model_copy(update={"model": "tiny"})


def error_of(api: FakeApi) -> Any:  # Any: an outcome without an error fails the test either way
    assert api.outcome is not None
    assert api.outcome.state == "failed"
    return api.outcome.error


def test_a_storage_that_refuses_writes_fails_the_attempt_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_session, "REPORT_SECONDS", 0.02)
    monkeypatch.setattr(uploads, "FIRST_DELAY_SECONDS", 0.02)
    monkeypatch.setattr(uploads, "MAX_DELAY_SECONDS", 0.02)
    api = RefusingApi()
    assert supervised(settings(tmp_path, DONE), api)
    assert error_of(api).code == "storage_read_only"
    assert "the server's storage refuses writes" in error_of(api).message


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_run_directory_that_may_not_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(self: Path, *args: Any, **kwargs: Any) -> None:  # Any: pathlib's own
        raise OSError(number, "no", str(self))

    api, chosen = FakeApi(), settings(tmp_path, "")
    monkeypatch.setattr(Path, "mkdir", refused)
    assert supervised(chosen, api)
    assert error_of(api).code == "storage_read_only"


def test_a_base_model_that_went_away_is_named_and_no_trainer_is_started(tmp_path: Path) -> None:
    api = GoneApi()
    assert supervised(settings(tmp_path, "raise SystemExit('started')"), api)
    assert error_of(api).code == "base_model_gone"
    assert "TUNESMITH_MODEL_DIRS" in error_of(api).message
