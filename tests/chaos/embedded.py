"""The embedded stack: `tunesmith serve` with SQLite and the file-system broker."""

from __future__ import annotations

import re
from pathlib import Path

from ..end_to_end.service import Service
from .recipes import ENV
from .stack import Stack, in_worker

_ENDED = re.compile(r"^.* (\w+) ended with status (-?\d+);.*$", re.MULTILINE)


class EmbeddedStack(Stack):
    name = "embedded"
    targets = ("api", "light", "worker", "supervisor", "trainer")
    train_workers = 1

    def __init__(self, root: Path, models: Path) -> None:
        super().__init__(root, models)
        broker = root / "broker"
        (broker / "control").mkdir(parents=True)
        env = ENV | {"TUNESMITH_BROKER_URL": f"filesystem://{broker}"}
        self._service = Service(root / "service" / "data", models, **env)

    def start(self) -> None:
        self._service.start()

    def stop(self) -> None:
        self._service.close()

    @property
    def url(self) -> str:
        return self._service.url

    @property
    def api_key(self) -> str:
        return self._service.api_key

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self._service.data_dir / 'tunesmith.db'}"

    @property
    def runs(self) -> list[Path]:
        return [self._service.data_dir / "runs"]

    def pids(self, target: str) -> list[int]:
        if target == "api":
            return self._service.processes("tunesmith_server api")
        queue = "light" if target == "light" else "train"
        mains = self._service.processes(f"worker --queue {queue}")
        if not mains:
            return []
        found = in_worker(mains[0])
        return {
            "light": found["main"] + found["pool"],
            "worker": found["main"],
            "supervisor": found["pool"],
            "trainer": found["trainer"],
        }[target]

    def exits(self) -> list[str]:
        log = self._service.data_dir.parent / "serve.log"
        return [m[0] for m in _ENDED.finditer(log.read_text()) if m[2] != "-9"]

    @property
    def logs(self) -> list[Path]:
        data = self._service.data_dir
        return [data.parent / "serve.log", *sorted(data.glob("logs/*.log*"))]
