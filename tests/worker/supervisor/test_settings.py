"""What a worker refuses to start with, and what it trusts."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.certificates import issue
from tests.end_to_end.service import until
from tunesmith_worker import __main__
from tunesmith_worker.supervisor import app as celery_app
from tunesmith_worker.supervisor import heartbeat
from tunesmith_worker.supervisor.identity import WorkerIdentity
from tunesmith_worker.supervisor.server_api import ServerApi, ServerUnreachable
from tunesmith_worker.supervisor.settings import WorkerSettings

TOKEN = SecretStr("kF3-9sQ_zP0aB7xY")


@pytest.fixture(autouse=True)
def _directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESMITH_DATA_DIR", str(tmp_path))


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"WORKER_TOKEN": "worker-token"}, "TUNESMITH_WORKER_TOKEN is a placeholder"),
        ({"BROKER_URL": "redis://redis/0"}, "TUNESMITH_BROKER_URL has no password for redis"),
        (
            {"SERVER_URL": "tune.example"},
            "TUNESMITH_SERVER_URL='tune.example': must start with http:// or https://",
        ),
        ({"WORKER_LABELS": "h100"}, "TUNESMITH_WORKER_LABELS='h100': must be at most 16 pairs"),
        (
            {"BROKER_URL": "memory://", "WORKER_TOKEN": "kF3-9sQ_zP0aB7xY", "CA_FILE": "none.pem"},
            "TUNESMITH_CA_FILE ",
        ),
    ],
)
def test_the_command_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
    said: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"TUNESMITH_{name}", value)
    assert __main__.main(["worker"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert line.startswith(f"error: {said}")


def test_a_misspelled_variable_draws_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TUNESMITH_MODEL_DIR", "/srv/models")
    with caplog.at_level(logging.WARNING):
        assert __main__.main(["worker"]) == 1  # no broker
    assert "TUNESMITH_MODEL_DIR is not a setting" in caplog.text
    assert "did you mean TUNESMITH_MODEL_DIRS?" in caplog.text


def test_a_missing_model_folder_draws_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TUNESMITH_BROKER_URL", "memory://")
    monkeypatch.setenv("TUNESMITH_WORKER_TOKEN", TOKEN.get_secret_value())
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("TUNESMITH_MODEL_DIRS", f"{tmp_path}:{tmp_path}/none:{tmp_path}/a-file")
    monkeypatch.setattr(celery_app, "run_worker", lambda settings, queue: None)
    tmp_path.chmod(0o700)
    assert __main__.main(["worker"]) == 0
    assert [line.partition(":")[0] for line in caplog.messages] == [
        f"TUNESMITH_MODEL_DIRS names {tmp_path}/none, which is missing",
        f"TUNESMITH_MODEL_DIRS names {tmp_path}/a-file, which is not a folder",
    ]


@pytest.mark.parametrize("which", [".", "worker-token"])
def test_files_open_to_others_are_refused(tmp_path: Path, which: str) -> None:
    (tmp_path / "worker-token").write_text(TOKEN.get_secret_value())
    (tmp_path / "worker-token").chmod(0o600)
    WorkerSettings(broker_url="memory://").check()
    (tmp_path / which).chmod(0o744)
    with pytest.raises(ValueError, match=r"mode 744\): run `chmod o-rwx "):
        WorkerSettings(broker_url="memory://").check()


def test_a_placeholder_in_the_token_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "worker-token").touch(mode=0o600)
    (tmp_path / "worker-token").write_text("change-me\n")
    with pytest.raises(ValueError, match=r"the token in .*worker-token is a placeholder"):
        WorkerSettings(broker_url="memory://").check()


def test_what_a_worker_trusts_must_hold_a_certificate(tmp_path: Path) -> None:
    made = issue(tmp_path / "tls", "tune.example")
    settings = WorkerSettings(broker_url="memory://", worker_token=TOKEN)
    settings.check()
    settings.model_copy(update={"ca_file": made.cert}).check()
    for wrong in (made.key, tmp_path / "none.pem"):
        with pytest.raises(
            ValueError, match=r"TUNESMITH_CA_FILE .* is not a file of PEM certificates"
        ):
            settings.model_copy(update={"ca_file": wrong}).check()


def test_a_worker_that_gets_no_answer_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong address or certificate would otherwise look like a queue without jobs."""
    asked = []

    def no_answer(api: ServerApi, hello: object) -> None:
        asked.append(hello)
        raise ServerUnreachable("CERTIFICATE_VERIFY_FAILED")

    monkeypatch.setattr(ServerApi, "hello", no_answer)
    monkeypatch.setattr(heartbeat, "AGAIN_SECONDS", 0.001)
    settings = WorkerSettings(broker_url="memory://", worker_token=TOKEN)
    thread = heartbeat.HeartbeatThread(settings, WorkerIdentity.new("train"))
    thread.start()
    until(lambda: len(asked) > 40, 20)
    thread.stop()
    [line] = [line for line in caplog.messages if "no answer" in line]
    assert "CERTIFICATE_VERIFY_FAILED" in line


def test_a_trainer_runs_on_the_workers_own_interpreter_unless_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TUNESMITH_TRAINER_PYTHON", "")
    assert Path(WorkerSettings().trainer_python).name.startswith("python")
    monkeypatch.setenv("TUNESMITH_TRAINER_PYTHON", "/opt/trainer/bin/python")
    assert WorkerSettings().trainer_python == "/opt/trainer/bin/python"


def test_labels_and_memory_are_part_of_the_heartbeat(tmp_path: Path) -> None:
    settings = WorkerSettings(data_dir=tmp_path, worker_labels="gpu=h100, rack=2")
    assert settings.labels == {"gpu": "h100", "rack": "2"}
    thread = heartbeat.HeartbeatThread(settings, WorkerIdentity.new("train"))
    assert thread._hello.labels == settings.labels
    assert (thread._hello.device_bytes or 0) > 2**20
