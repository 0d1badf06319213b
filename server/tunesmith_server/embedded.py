"""`tunesmith serve`: API, broker, a training worker, a worker that validates files and, if the
settings ask for it, vLLM, as one supervised process tree.

All data is in one data directory. TUNESMITH_DATABASE_URL, TUNESMITH_BROKER_URL and
TUNESMITH_STORAGE_URL replace the embedded database, broker and storage.
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
from tunesmith_server.services import keys, sessions
from tunesmith_server.services.catalogue import base_models

from . import installation, migrate
from .broker import embedded_broker, find_server
from .certificate import check_certificate
from .children import Child, stop_all, without_secrets
from .inference.vllm_child import VLLMChild, vllm_child

log = logging.getLogger(__name__)

STOP_SECONDS = 15.0
"""Time in which a child process must stop. The training worker gets this time plus
TUNESMITH_RELEASE_SECONDS."""
INTERRUPTED = 130
"""Exit status after Ctrl-C during the start."""
SLOW_SECONDS = 60.0
"""Seconds of start-up after which the log points to the folder of the log files."""


class StartError(Exception):
    """Error at start; the message has the reason and the remedy."""


def serve(settings: Settings, *, as_json: bool = False) -> int:
    """Run the service until SIGINT or SIGTERM; `as_json` prints one JSON object per line. Return
    the exit status: 130 after a SIGINT before the service was ready, else 0. Raises StartError
    before any child process is started."""
    settings.prepare()
    with _lock(settings.data_dir):
        return _serve(settings, _Output(as_json))


def _serve(settings: Settings, output: _Output) -> int:
    for warning in missing_folders(settings.base_model_folders()):
        log.warning("%s", warning)
    settings.port = _free_port(settings.host, settings.port)
    check_tls(settings, urlsplit(settings.url).hostname or "")
    check_backends(settings)
    migrate.upgrade(settings.database_url)
    check_installation(settings)
    key_file = settings.data_dir / "api-key"
    admin_key = _register_admin_key(settings, key_file)

    children = _children(settings)
    stopping = 0  # the signal that requests it

    def request_stop(signum: int, frame: FrameType | None) -> None:
        nonlocal stopping
        if stopping:  # a second Ctrl-C kills the children
            for child in children:
                child.kill()
        stopping = stopping or signum

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, request_stop)
    url, opener = settings.url, _opener(settings)
    started, announced, warned = time.monotonic(), False, False
    try:
        output.write(
            f"data directory  {settings.data_dir}\nadmin API key   {key_file}",
            event="starting",
            data_dir=str(settings.data_dir),
            api_key_file=str(key_file),
        )
        for child in children:
            child.start()
        while not stopping:
            for child in children:
                child.restart_if_ended()
            if not announced and _ready(opener, url):
                announced = True
                seconds = round(time.monotonic() - started, 1)
                text = f"ready           {url}/v1  ({seconds} s)"
                output.write(text, event="ready", base_url=f"{url}/v1", seconds=seconds)
                link = _sign_in_link(settings, admin_key)
                text = f"portal          {link}  (works once, within 15 minutes)"
                output.write(text, event="portal", url=f"{url}/portal", sign_in=link)
            if not announced and not warned and time.monotonic() - started > SLOW_SECONDS:
                warned = True
                log.warning("not ready yet: see the logs in %s", settings.data_dir / "logs")
            time.sleep(0.2)
        output.write("stopping: a running job goes back to the queue", event="stopping")
    finally:
        stop_all(children)
    output.write("stopped", event="stopped")
    return INTERRUPTED if stopping == signal.SIGINT and not announced else 0


def check_tls(settings: Settings, host: str) -> None:
    """Raise StartError if the certificate is unusable or is not for `host`. If `host` is a loopback
    address, the certificate may be for any name."""
    if settings.tls_cert and settings.tls_key:
        try:
            check_certificate(settings.tls_cert, settings.tls_key, host)
        except ValueError as error:
            raise StartError(str(error)) from error


def check_backends(settings: Settings) -> None:
    """Raise StartError if the database or the storage cannot be used."""
    try:
        database = Database(settings.database_url)
        try:
            with database.engine.connect():
                pass  # only the connection is checked
        finally:
            database.dispose()
    except (SQLAlchemyError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise StartError(f"TUNESMITH_DATABASE_URL: {reason}") from error
    try:
        Storage(settings.storage_url).check()
    except (StorageUnavailable, BaseError, ValueError) as error:
        raise StartError(f"TUNESMITH_STORAGE_URL: {str(error).splitlines()[0]}") from error


def check_installation(settings: Settings) -> None:
    """Raise WrongStore if the database and the store belong to different installations."""
    database = Database(settings.database_url)
    try:
        installation.ensure(database, Storage(settings.storage_url))
    finally:
        database.dispose()


def _children(settings: Settings) -> list[Child]:
    logs = settings.data_dir / "logs"
    logs.mkdir(exist_ok=True)
    env = {
        **os.environ,
        "TUNESMITH_DATA_DIR": str(settings.data_dir),
        "TUNESMITH_HOST": settings.host,
        "TUNESMITH_PORT": str(settings.port),
        "TUNESMITH_SERVER_URL": settings.url,
        "TUNESMITH_INFERENCE_CHILD": "true",
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
            log.warning("no valkey-server or redis-server found: using polled files as the broker")
    if vllm := _vllm_child(settings, logs):
        env["TUNESMITH_INFERENCE_VLLM_SOCKET"] = str(vllm.socket)
        children.append(vllm)
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
                env=env if name == "api" else without_secrets(env),
                log_file=logs / f"{name}.log",
                stops_first=name != "api",
                stop_seconds=STOP_SECONDS + (settings.release_seconds if name == "train" else 0),
            )
        )
    return children


def _vllm_child(settings: Settings, logs: Path) -> VLLMChild | None:
    try:
        return vllm_child(settings, base_models.local_folders(settings), logs)
    except ValueError as error:
        raise StartError(str(error)) from error


def _register_admin_key(settings: Settings, key_file: Path) -> str:
    key = read_or_write_secret(key_file, new_key())
    database = Database(settings.database_url)
    with database.write.begin() as session:
        key_id = keys.ensure_admin(session, "admin (first start)", key).id
    database.dispose()
    return key_id


def _sign_in_link(settings: Settings, key_id: str) -> str:
    database = Database(settings.database_url)
    with database.write.begin() as session:
        _, secret = sessions.create(session, key_id, "link")
    database.dispose()
    return f"{settings.url}/portal/sign-in?link={secret}"


@contextlib.contextmanager
def _lock(data_dir: Path) -> Iterator[None]:
    """Allow only one `serve` per data directory."""
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
    """Return a URL opener for requests to the API process. The opener ignores the proxy that the
    environment names."""
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
class _Output:
    """Standard output of `serve`: text for people, or JSON lines for programs."""

    as_json: bool

    def write(self, text: str, **fields: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # the reader has exited; continue
            sys.stdout.write((json.dumps(fields) if self.as_json else text) + "\n")
            sys.stdout.flush()
