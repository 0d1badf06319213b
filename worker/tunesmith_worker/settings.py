"""The worker's settings, read once at start from TUNESMITH_* variables, nowhere else.

The trainer gets none of them: it is a pure function of its run directory.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Self

from pydantic import SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class WorkerSettings(BaseSettings):
    """One process, one object."""

    model_config = SettingsConfigDict(env_prefix="TUNESMITH_", use_attribute_docstrings=True)

    data_dir: Path = Path(".tunesmith")
    """Holds run directories and downloaded base models."""
    server_url: str = "http://127.0.0.1:8000"
    """Where the API is, without `/v1`."""
    broker_url: str = ""
    """Celery broker URL: the server's."""
    worker_token: SecretStr = SecretStr("")
    """What the server knows workers by; empty: `worker-token` in the data directory."""
    model_dirs: str = ""
    """Folders whose subfolders are base models, separated by colons."""
    trainer_python: str = sys.executable
    """Interpreter that runs trainers; it needs the extra [worker]."""

    @model_validator(mode="after")
    def _fill_in(self) -> Self:
        self.data_dir = self.data_dir.expanduser().resolve()
        self.server_url = self.server_url.rstrip("/")
        token_file = self.data_dir / "worker-token"
        if not self.worker_token.get_secret_value() and token_file.is_file():
            self.worker_token = SecretStr(token_file.read_text().strip())
        return self

    def check(self) -> None:
        """Refuse to start without what a worker cannot do without. Raises ValueError."""
        if not self.broker_url:
            raise ValueError("TUNESMITH_BROKER_URL is not set: give it the server's broker")
        if not self.worker_token.get_secret_value():
            raise ValueError(
                f"no worker token: set TUNESMITH_WORKER_TOKEN, or copy the server's worker-token "
                f"file to {self.data_dir}"
            )

    def base_model_folders(self) -> list[Path]:
        return [Path(part).expanduser().resolve() for part in self.model_dirs.split(":") if part]
