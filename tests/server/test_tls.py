"""HTTPS of the running service, and trusted X-Forwarded-* headers."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
import pytest
from fastapi import Request
from pydantic import SecretStr

import tunesmith
from tunesmith_schema.tls import tls_context
from tunesmith_server import migrate
from tunesmith_server.app import create_app
from tunesmith_server.certificate import check_certificate
from tunesmith_server.core.settings import Settings
from tunesmith_server.embedded import _free_port
from tunesmith_worker.supervisor.identity import WorkerIdentity
from tunesmith_worker.supervisor.server_api import ServerApi, ServerRefused, ServerUnreachable
from tunesmith_worker.supervisor.settings import WorkerSettings

from ..certificates import Certificate, issue
from ..end_to_end.service import until
from .actors import FakeWakeUps
from .live import listening

ROWS = b'{"prompt": "hi", "completion": "ho"}\n' * 4


@contextmanager
def running(verb: str, data_dir: Path, port: int, **variables: str) -> Iterator[IO[str]]:
    """Run `tunesmith VERB` until the end of the block; yield its standard output."""
    env = {
        **os.environ,
        **variables,
        "TUNESMITH_DATA_DIR": str(data_dir),
        "TUNESMITH_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    with (data_dir.parent / f"{verb}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tunesmith.cli", verb, "--json"],
            env=env,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        yield process.stdout
    finally:  # stdout stays open: a last line written to a closed pipe is an error
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=40)
        assert process.returncode == 0


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    """Certificate for a name and for an address of this machine that the SDK can check."""
    return issue(tmp_path / "tls", "tune.example", "127.0.0.1")


def test_the_api_serves_https_and_nothing_else(tmp_path: Path, certificate: Certificate) -> None:
    port = _free_port("127.0.0.1", 0)
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o700)
    migrate.upgrade(f"sqlite:///{data_dir / 'tunesmith.db'}")
    variables = {**certificate.environment, "TUNESMITH_BROKER_URL": "memory://"}
    trust = tls_context(certificate.cert, "tune.example")
    trust.check_hostname = True
    with running("api", data_dir, port, **variables) as output:
        assert json.loads(output.readline())["base_url"] == f"https://127.0.0.1:{port}/v1"
        with httpx.Client(verify=trust, trust_env=False) as client:

            def answers() -> bool:
                try:
                    return client.get(f"https://127.0.0.1:{port}/healthz").status_code == 200
                except httpx.ConnectError:
                    return False

            until(answers, 30)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False)
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"https://127.0.0.1:{port}/healthz", trust_env=False)


@pytest.mark.slow
def test_serve_and_its_workers_speak_https(
    tmp_path: Path, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every address, with a certificate whose file only the SDK was told of."""
    port = _free_port("127.0.0.1", 0)
    data_dir = tmp_path / "data"
    variables = {**certificate.environment, "TUNESMITH_HOST": "0.0.0.0"}
    with running("serve", data_dir, port, **variables) as output:
        said = [json.loads(output.readline()) for _ in range(2)]
        assert [line["event"] for line in said] == ["starting", "ready"]
        assert said[1]["base_url"] == f"https://127.0.0.1:{port}/v1"
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.cert))
        key = (data_dir / "api-key").read_text().strip()
        with tunesmith.Client(base_url=said[1]["base_url"], api_key=key) as client:
            rows = tmp_path / "rows.jsonl"
            rows.write_bytes(ROWS)
            file = client.files.create(file=rows)
            # A light worker has fetched and validated the file.
            until(lambda: client.files.retrieve(file.id).status == "processed", 40)
        assert "hello" in (data_dir / "logs" / "api.log").read_text()


def test_a_certificate_is_trusted_without_its_authority(
    settings: Settings, wake_ups: FakeWakeUps, tmp_path: Path
) -> None:
    """What `serve` gives its workers: the file that it serves, which may lack the chain."""
    authority = issue(tmp_path / "ca", "ca.example")
    made = issue(tmp_path / "tls", "tune.example", by=authority)
    check_certificate(made.cert, made.key, "127.0.0.1")
    served = settings.model_copy(update={"tls_cert": made.cert, "tls_key": made.key})
    with listening(create_app(served)) as url:
        for trusted in (made, authority):
            with (
                worker(tmp_path, url, trusted.cert) as api,
                pytest.raises(ServerRefused, match="worker token is missing or wrong"),
            ):
                api.claim("train@one")


@pytest.mark.parametrize(
    ("names", "days", "host", "said"),
    [
        (["tune.example"], 1, "127.0.0.1", None),
        (["tune.example"], 1, "tune.example", None),
        (["10.1.2.3"], 1, "10.1.2.3", None),
        (["tune.example"], 1, "other.example", "Hostname mismatch"),
        (["tune.example"], 1, "10.1.2.3", "IP address mismatch"),
        (["tune.example"], -0.5, "127.0.0.1", "certificate has expired"),
    ],
)
def test_a_certificate_that_clients_would_refuse_is_refused(
    tmp_path: Path, names: list[str], days: float, host: str, said: str | None
) -> None:
    made = issue(tmp_path, *names, days=days)
    if said is None:
        check_certificate(made.cert, made.key, host)
        return
    with pytest.raises(ValueError, match=f"would refuse TUNESMITH_TLS_CERT .*: {said}"):
        check_certificate(made.cert, made.key, host)


def test_files_that_are_no_certificate_and_key_are_refused(tmp_path: Path) -> None:
    one, two = issue(tmp_path / "1", "a"), issue(tmp_path / "2", "a")
    locked = issue(tmp_path / "3", "a", passphrase=b"kF3-9sQ_zP0aB7xY")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("-----BEGIN NOTHING-----\n")
    garbage.chmod(0o600)
    for cert, key, said in (
        (one.cert, two.key, "are not a certificate and its key in PEM .*MISMATCH"),
        (garbage, one.key, "are not a certificate and its key in PEM"),
        (one.cert, garbage, "are not a certificate and its key in PEM"),
        (locked.cert, locked.key, "TUNESMITH_TLS_KEY needs a passphrase"),
        (one.cert, tmp_path / "none", "TUNESMITH_TLS_KEY: file not found"),
    ):
        with pytest.raises(ValueError, match=said):
            check_certificate(cert, key, "127.0.0.1")


def worker(tmp_path: Path, url: str, ca_file: Path | None) -> ServerApi:
    settings = WorkerSettings(
        data_dir=tmp_path / "worker",
        server_url=url,
        ca_file=ca_file,
        worker_token=SecretStr("kF3-9sQ_zP0aB7xY"),
    )
    return ServerApi(settings, WorkerIdentity.new("train"))


def test_a_worker_trusts_the_certificate_that_it_was_given_and_no_other(
    settings: Settings, wake_ups: FakeWakeUps, tmp_path: Path, certificate: Certificate
) -> None:
    other = issue(tmp_path / "other", "tune.example", "127.0.0.1")
    served = settings.model_copy(update={"tls_cert": certificate.cert, "tls_key": certificate.key})
    with listening(create_app(served)) as url:
        assert url.startswith("https://")
        for ca_file in (None, other.cert):
            with (
                worker(tmp_path, url, ca_file) as api,
                pytest.raises(ServerUnreachable, match="CERTIFICATE_VERIFY_FAILED"),
            ):
                api.claim("train@one")
        with (
            worker(tmp_path, url, certificate.cert) as api,
            pytest.raises(ServerRefused, match="worker token is missing or wrong"),
        ):
            api.claim("train@one")  # TLS works; the token is wrong


def test_the_sdk_says_how_to_trust_a_certificate_that_nobody_signed(
    settings: Settings,
    wake_ups: FakeWakeUps,
    certificate: Certificate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = settings.model_copy(update={"tls_cert": certificate.cert, "tls_key": certificate.key})
    with listening(create_app(served)) as url:
        with (
            tunesmith.Client(base_url=f"{url}/v1", api_key="k", max_retries=0) as client,
            pytest.raises(tunesmith.APIConnectionError) as caught,
        ):
            client.models.list()
        assert "SSL_CERT_FILE" in str(caught.value.hint)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.cert))
        with (
            tunesmith.Client(base_url=f"{url}/v1", api_key="k") as client,
            pytest.raises(tunesmith.AuthenticationError),
        ):
            client.models.list()


def test_away_from_this_machine_the_certificates_name_counts(certificate: Certificate) -> None:
    assert tls_context(certificate.cert, "10.1.2.3").check_hostname
    assert not tls_context(certificate.cert, "127.0.0.1").check_hostname
    assert tls_context(certificate.cert, "127.0.0.1").verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("proxies", "believed"),
    [("", False), ("10.0.0.0/8", False), ("127.0.0.1", True), ("127.0.0.0/8", True), ("*", True)],
)
def test_only_a_declared_proxy_is_believed(
    settings: Settings,
    wake_ups: FakeWakeUps,
    monkeypatch: pytest.MonkeyPatch,
    proxies: str,
    believed: bool,
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # a variable of uvicorn, not of ours
    app = create_app(Settings.model_validate({**settings.model_dump(), "trusted_proxies": proxies}))

    @app.get("/seen")
    def seen(request: Request) -> list[str | None]:
        return [request.url.scheme, request.client and request.client.host]

    headers = {"x-forwarded-proto": "https", "x-forwarded-for": "198.51.100.7"}
    with listening(app) as url:
        told = httpx.get(f"{url}/seen", headers=headers, trust_env=False).json()
    assert told == (["https", "198.51.100.7"] if believed else ["http", "127.0.0.1"])
