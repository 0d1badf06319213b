"""Unsafe settings are refused: by the class, and by the commands in one line."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tunesmith_server.__main__ import main
from tunesmith_server.core.settings import Settings, read_or_write_secret

from ..certificates import issue

SECRET = "tunesmith-secret"


def started(verb: str, data_dir: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `tunesmith VERB`, which must exit by itself."""
    return subprocess.run(
        [sys.executable, "-m", "tunesmith.cli", verb],
        env={**os.environ, "TUNESMITH_DATA_DIR": str(data_dir), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("verb", ["api", "serve", "worker"])
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("WORKER_TOKEN", SECRET, "TUNESMITH_WORKER_TOKEN is a placeholder: use a random value"),
        (
            "BROKER_URL",
            f"redis://:{SECRET}@127.0.0.1/0",
            "the password in TUNESMITH_BROKER_URL is a placeholder",
        ),
    ],
)
def test_a_default_secret_starts_nothing(
    tmp_path: Path, verb: str, variable: str, value: str, said: str
) -> None:
    done = started(verb, tmp_path / "data", **{f"TUNESMITH_{variable}": value})
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"error: {said}")
    assert SECRET not in done.stderr + done.stdout
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("verb", ["api", "serve", "worker"])
def test_a_data_directory_open_to_others_starts_nothing(tmp_path: Path, verb: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o755)
    done = started(verb, tmp_path / "data", TUNESMITH_BROKER_URL="memory://")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("error: the data directory ")
    assert line.endswith(f"(mode 755): run `chmod o-rwx {tmp_path / 'data'}`")
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("verb", ["api", "serve"])
def test_a_public_address_without_tls_or_proxy_starts_nothing(tmp_path: Path, verb: str) -> None:
    done = started(verb, tmp_path / "data", TUNESMITH_HOST="0.0.0.0")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("error: TUNESMITH_HOST (--host) '0.0.0.0' is open to other machines")
    for remedy in ("TUNESMITH_TLS_CERT", "TUNESMITH_TRUSTED_PROXIES", "listen on 127.0.0.1"):
        assert remedy in line


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "0", "", "10.1.2.3", "::ffff:10.1.2.3", "fd00::1"],
)
def test_a_public_address_needs_tls_or_a_proxy(tmp_path: Path, host: str) -> None:
    with pytest.raises(ValueError, match="is open to other machines"):
        Settings(data_dir=tmp_path, host=host)
    Settings(data_dir=tmp_path, host=host, trusted_proxies="10.1.2.0/24")
    Settings(data_dir=tmp_path, host=host, tls_cert=Path("cert"), tls_key=Path("key"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.1", "127.1", "::1", "localhost"])
def test_a_loopback_address_needs_neither(tmp_path: Path, host: str) -> None:
    Settings(data_dir=tmp_path, host=host)


@pytest.mark.parametrize(
    ("addresses", "safe"), [(["127.0.0.1", "::1"], True), (["127.0.0.1", "10.1.2.3"], False)]
)
def test_a_name_is_judged_by_all_addresses_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, addresses: list[str], safe: bool
) -> None:
    known = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: known)
    if safe:
        Settings(data_dir=tmp_path, host="tune")
        return
    with pytest.raises(ValueError, match="'tune' is open to other machines"):
        Settings(data_dir=tmp_path, host="tune")


def test_a_name_without_an_address_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ValueError, match=r"'tune' is neither an address nor a name .* resolve"):
        Settings(data_dir=tmp_path, host="tune")


@pytest.mark.parametrize("proxies", ["nginx", "10.0.0.1/8", "*,10.0.0.1", "10.0.0.256"])
def test_a_proxy_that_would_never_match_is_refused(tmp_path: Path, proxies: str) -> None:
    with pytest.raises(ValueError, match="give the proxy's address, or a network"):
        Settings(data_dir=tmp_path, trusted_proxies=proxies)


def test_one_half_of_tls_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="TUNESMITH_TLS_CERT and TUNESMITH_TLS_KEY: set both"):
        Settings(data_dir=tmp_path, tls_key=Path("key.pem"))


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("TUNESMITH_WORKER_TOKEN", "short-1234", "TUNESMITH_WORKER_TOKEN has 10 characters"),
        (
            "TUNESMITH_BROKER_URL",
            "redis://redis/0",
            "TUNESMITH_BROKER_URL has no password for redis",
        ),
        (
            "TUNESMITH_DATABASE_URL",
            f"postgresql://ann:{SECRET}@db/tunesmith",
            "the password in TUNESMITH_DATABASE_URL is a placeholder",
        ),
        (
            "TUNESMITH_STORAGE_URL",
            f"s3://ann:{SECRET}@bucket/prefix",
            "the password in TUNESMITH_STORAGE_URL is a placeholder",
        ),
        ("TUNESMITH_PORT", "80000", "TUNESMITH_PORT='80000': must be at most 65535"),
    ],
)
def test_the_command_says_which_variable_and_never_its_secret(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    value: str,
    said: str,
) -> None:
    monkeypatch.setenv(variable, value)
    assert main(["keys", "list", "--data-dir", str(tmp_path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {said}")
    assert SECRET not in line
    assert "short-1234" not in line


def test_a_stores_default_key_is_refused_where_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "minioadmin")
    Settings(data_dir=tmp_path)
    with pytest.raises(ValueError, match="AWS_SECRET_ACCESS_KEY is a placeholder") as caught:
        Settings(data_dir=tmp_path, storage_url="s3://bucket")
    assert "minioadmin" not in str(caught.value)


@pytest.mark.parametrize("name", ["worker-token", "api-key"])
def test_a_secret_on_disk_that_others_can_read_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    read_or_write_secret(file, "kF3-9sQ_zP0aB7xY")
    file.chmod(0o644)
    with pytest.raises(ValueError, match=rf"mode 644\): run `chmod o-rwx .*{name}`"):
        read_or_write_secret(file, "")


def test_a_placeholder_in_the_token_file_is_refused(tmp_path: Path) -> None:
    read_or_write_secret(tmp_path / "worker-token", SECRET)
    with pytest.raises(ValueError, match=r"the token in .*worker-token is a placeholder"):
        Settings(data_dir=tmp_path).prepare()


def test_a_variable_set_to_nothing_counts_as_not_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOST", "PORT", "TLS_CERT", "DATABASE_URL"):
        monkeypatch.setenv(f"TUNESMITH_{name}", "")
    assert Settings(data_dir=tmp_path).url == "http://127.0.0.1:8000"


def test_secrets_stay_out_of_what_is_printed(tmp_path: Path) -> None:
    url = "redis://:kF3-9sQ_zP0a@redis/0"
    assert "kF3" not in repr(Settings(data_dir=tmp_path, broker_url=url))
    with pytest.raises(ValueError, match="is open to other machines") as caught:
        Settings(data_dir=tmp_path, broker_url=url, host="0.0.0.0")
    assert "kF3" not in str(caught.value)


def test_a_misspelled_variable_draws_a_warning_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TUNESMITH_DATABSE_URL", "postgresql://db/tunesmith")
    assert main(["keys", "list", "--data-dir", str(tmp_path)]) == 0
    assert "did you mean TUNESMITH_DATABASE_URL?" in caplog.text


def test_the_tls_key_is_its_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = issue(tmp_path / "tls", "tune.example")
    made.key.chmod(0o644)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    assert main(["serve", "--data-dir", str(tmp_path / "data"), "--port", "0"]) == 1
    assert capsys.readouterr().err.startswith(f"error: the TLS key {made.key} is open to every")
