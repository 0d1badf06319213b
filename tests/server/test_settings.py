"""Settings, secrets and keys on disk: private, created once, refused if damaged."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from sqlalchemy import select

from tunesmith_server.__main__ import main
from tunesmith_server.core.database import Database
from tunesmith_server.core.security import KEY_PREFIX
from tunesmith_server.core.settings import Settings, read_or_write_secret
from tunesmith_server.models import ApiKeyRow


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_data_directory_is_its_owners_alone(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "new" / "data")
    settings.prepare()
    assert mode(settings.data_dir) == 0o700
    assert mode(settings.data_dir / "worker-token") == 0o600


def test_the_worker_token_is_made_once(tmp_path: Path) -> None:
    tokens = set()
    for _ in range(2):
        settings = Settings(data_dir=tmp_path)
        settings.prepare()
        tokens.add(settings.worker_token.get_secret_value())
    [token] = tokens
    assert len(token) >= 32
    assert token not in repr(settings)


def test_a_token_from_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESMITH_WORKER_TOKEN", "given from outside")
    settings = Settings(data_dir=tmp_path)
    settings.prepare()
    assert settings.worker_token.get_secret_value() == "given from outside"
    assert not (tmp_path / "worker-token").exists()


def test_an_empty_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "worker-token").write_text("\n")
    with pytest.raises(ValueError, match="is empty: delete it"):
        read_or_write_secret(tmp_path / "worker-token", "new")


def test_everything_lives_in_the_data_directory_unless_told_otherwise(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert settings.database_url == f"sqlite:///{tmp_path / 'tunesmith.db'}"
    assert settings.storage_url == (tmp_path / "blobs").as_uri()
    assert settings.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("name", "value"),
    [("port", "70000"), ("lease_seconds", "0"), ("max_losses", "0"), ("project", "a:b")],
)
def test_a_setting_out_of_bounds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"TUNESMITH_{name.upper()}", value)
    with pytest.raises(ValueError, match=name):
        Settings(data_dir=tmp_path)


def test_a_key_is_shown_once_and_stored_as_its_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--data-dir", str(tmp_path), "--json"]
    assert main(["keys", "create", "ann", *where]) == 0
    made = json.loads(capsys.readouterr().out)
    key = made["key"]
    assert key.startswith(KEY_PREFIX)
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or key.encode() not in file.read_bytes(), file
    database = Database(f"sqlite:///{tmp_path / 'tunesmith.db'}")
    with database.read() as session:
        row = session.scalars(select(ApiKeyRow)).one()
    database.dispose()
    assert row.sha256 == hashlib.sha256(key.encode()).hexdigest()
    assert len(row.prefix) < len(key) / 4
    assert main(["keys", "list", *where]) == 0
    listed = capsys.readouterr().out
    assert key not in listed
    [shown] = json.loads(listed)
    assert (shown["name"], shown["revoked_at"]) == ("ann", None)


def test_a_key_can_be_revoked_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--data-dir", str(tmp_path), "--json"]
    main(["keys", "create", "ann", *where])
    key_id = json.loads(capsys.readouterr().out)["id"]
    assert main(["keys", "revoke", key_id, *where]) == 0
    capsys.readouterr()
    main(["keys", "list", *where])
    assert json.loads(capsys.readouterr().out)[0]["revoked_at"]


def test_revoking_an_unknown_key_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "revoke", "key-none", "--data-dir", str(tmp_path)]) == 1
    assert "no key 'key-none'" in capsys.readouterr().err


def test_the_api_does_not_start_on_an_old_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["api", "--data-dir", str(tmp_path)]) == 1
    assert "TUNESMITH_BROKER_URL" in capsys.readouterr().err
    monkeypatch.setenv("TUNESMITH_BROKER_URL", "memory://")
    assert main(["api", "--data-dir", str(tmp_path)]) == 1
    assert "tunesmith migrate" in capsys.readouterr().err
