"""`tunesmith serve`: API, broker, a train worker and a light worker as one supervised process tree.

Everything lives in one data directory. Each piece can be replaced by a TUNESMITH_*_URL.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from sqlalchemy.exc import SQLAlchemyError

from tunesmith_schema.model_dirs import missing_folders
from tunesmith_schema.tls import tls_context
from tunesmith_server.core.database import Database
from tunesmith_server.core.security import new_key
from tunesmith_server.core.settings import Settings, read_or_write_secret
from tunesmith_server.core.storage import Storage, StorageUnavailable
from tunesmith_server.services import keys

from . import migrate
from .broker import embedded_broker, find_server
from .certificate import check_certificate
from .children import Child, stop_all

log = logging.getLogger(__name__)

STOP_SECONDS = 15.0
"""For a child to stop; the train worker gets what its trainer may take on top."""
SLOW_SECONDS = 60.0
"""A start that takes longer says where to look."""


class StartError(Exception):
    """`serve` cannot start; the message says why and what to do."""


def serve(settings: Settings, *, as_json: bool = False) -> None:
    """Run until SIGINT or SIGTERM; `as_json`: say what happens as one JSON object a line.

    Raises StartError before anything was started.
    """
    settings.prepare()
    with _lock(settings.data_dir):
        _serve(settings, _Voice(as_json))


def _serve(settings: Settings, voice: _Voice) -> None:
    for missing in missing_folders(settings.base_model_folders()):
        log.warning("%s", missing)
    settings.port = _free_port(settings.host, settings.port)
    check_tls(settings, urlsplit(settings.url).hostname or "")
    check_parts(settings)
    migrate.upgrade(settings.database_url)
    key_file = settings.data_dir / "api-key"
    _admin_key(settings, key_file)

    children = _children(settings)
    stopping = False

    def ask_to_stop(signum: int, frame: FrameType | None) -> None:
        nonlocal stopping
        if stopping:  # a second Ctrl-C means now
            for child in children:
                child.kill()
        stopping = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask_to_stop)
    url, opener = settings.url, _opener(settings)
    started, announced, warned = time.monotonic(), False, False
    try:
        voice.say(
            f"data directory  {settings.data_dir}\nadmin API key   {key_file}",
            event="starting",
            data_dir=str(settings.data_dir),
            api_key_file=str(key_file),
        )
        for child in children:
            child.start()
        while not stopping:
            for child in children:
                child.tend()
            if not announced and _ready(opener, url):
                announced = True
                seconds = round(time.monotonic() - started, 1)
                text = f"ready           {url}/v1  ({seconds} s)"
                voice.say(text, event="ready", base_url=f"{url}/v1", seconds=seconds)
            if not announced and not warned and time.monotonic() - started > SLOW_SECONDS:
                warned = True
                log.warning("still not ready: the logs are in %s", settings.data_dir / "logs")
            time.sleep(0.2)
        voice.say("stopping: a job in progress goes back to the queue", event="stopping")
    finally:
        stop_all(children)
    voice.say("stopped", event="stopped")


def check_tls(settings: Settings, host: str) -> None:
    """Raises StartError when the certificate cannot be served, or is not for `host`; any will do
    for a loopback one."""
    if settings.tls_cert and settings.tls_key:
        try:
            check_certificate(settings.tls_cert, settings.tls_key, host)
        except ValueError as error:
            raise StartError(str(error)) from error


def check_parts(settings: Settings) -> None:
    """Raises StartError when the database or the storage cannot be used."""
    try:
        database = Database(settings.database_url)
        try:
            with database.engine.connect():
                """It answers."""
        finally:
            database.dispose()
    except (SQLAlchemyError, ImportError) as error:
        said = str(error).splitlines()[0]
        raise StartError(f"TUNESMITH_DATABASE_URL: {said}") from error
    try:
        Storage(settings.storage_url).check()
    except (StorageUnavailable, BaseError, ValueError) as error:
        raise StartError(f"TUNESMITH_STORAGE_URL: {str(error).splitlines()[0]}") from error


def _children(settings: Settings) -> list[Child]:
    """In order of start; `broker` first."""
    logs = settings.data_dir / "logs"
    logs.mkdir(exist_ok=True)
    env = {
        **os.environ,
        "TUNESMITH_DATA_DIR": str(settings.data_dir),
        "TUNESMITH_HOST": settings.host,
        "TUNESMITH_PORT": str(settings.port),
        "TUNESMITH_SERVER_URL": settings.url,
        "PYTHONUNBUFFERED": "1",
    }
    if settings.tls_cert:
        env["TUNESMITH_CA_FILE"] = str(settings.tls_cert)
    children: list[Child] = []
    if settings.broker_url:
        env["TUNESMITH_BROKER_URL"] = settings.broker_url
    else:
        broker = embedded_broker(settings.data_dir, find_server())
        env["TUNESMITH_BROKER_URL"] = broker.url
        if broker.command:
            children.append(
                Child(
                    name="broker",
                    command=broker.command,
                    env={k: v for k, v in os.environ.items() if k in ("PATH", "HOME")},
                    log_file=logs / "broker.log",
                )
            )
        else:
            log.warning("no valkey-server or redis-server here: using polled files as broker")
    python = [sys.executable, "-m"]
    for name, command in (
        ("api", [*python, "tunesmith_server", "api"]),
        ("train", [*python, "tunesmith_worker", "worker", "--queue", "train"]),
        ("light", [*python, "tunesmith_worker", "worker", "--queue", "light"]),
    ):
        children.append(
            Child(
                name=name,
                command=command,
                env=env if name == "api" else _without_secrets(env),
                log_file=logs / f"{name}.log",
                leaves_first=name != "api",
                stop_seconds=STOP_SECONDS + (settings.release_seconds if name == "train" else 0),
            )
        )
    return children


def _without_secrets(env: dict[str, str]) -> dict[str, str]:
    """For workers, and through them for trainers: what opens the database and the store is the
    API's alone."""
    ours = ("TUNESMITH_DATABASE_URL", "TUNESMITH_STORAGE_URL")
    stores = ("AWS_", "AZURE_", "GOOGLE_")
    return {k: v for k, v in env.items() if k not in ours and not k.startswith(stores)}


def _admin_key(settings: Settings, key_file: Path) -> None:
    key = read_or_write_secret(key_file, new_key())
    database = Database(settings.database_url)
    with database.write.begin() as session:
        keys.ensure(session, "admin (first start)", key)
    database.dispose()


@contextlib.contextmanager
def _lock(data_dir: Path) -> Iterator[None]:
    """One `serve` per data directory."""
    with (data_dir / "serve.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "?"
            raise StartError(
                f"another `tunesmith serve` (pid {holder}) uses {data_dir}: "
                "stop it, or pass another --data-dir"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _free_port(host: str, port: int) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as probe:
            chosen: int = probe.getsockname()[1]
            return chosen
    except OSError as error:
        raise StartError(
            f"cannot listen on {host}:{port} ({error.strerror}): pass another --port"
        ) from None


def _opener(settings: Settings) -> urllib.request.OpenerDirector:
    """Asks our own child: never through a proxy of the environment."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if settings.tls_cert:
        context = tls_context(settings.tls_cert, urlsplit(settings.url).hostname or "")
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers)


def _ready(opener: urllib.request.OpenerDirector, url: str) -> bool:
    try:
        with opener.open(f"{url}/readyz", timeout=2) as reply:
            return bool(json.load(reply)["status"] == "ready")
    except (urllib.error.URLError, OSError, ValueError):
        return False


@dataclass(frozen=True)
class _Voice:
    """What `serve` says on standard output: lines for people, or JSON for programs."""

    as_json: bool

    def say(self, text: str, **fields: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # whoever read our output has left; we have not
            sys.stdout.write((json.dumps(fields) if self.as_json else text) + "\n")
            sys.stdout.flush()
