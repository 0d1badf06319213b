"""The server's settings, read once at start from TUNESMITH_* variables, nowhere else."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """One process, one object."""

    model_config = SettingsConfigDict(env_prefix="TUNESMITH_", use_attribute_docstrings=True)

    data_dir: Path = Path(".tunesmith")
    """Holds everything that is not told to live elsewhere; readable by its owner only."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    database_url: str = ""
    """SQLAlchemy URL; empty: SQLite in the data directory."""
    broker_url: str = ""
    """Celery broker URL; empty: the embedded broker of `tunesmith serve`."""
    storage_url: str = ""
    """obstore URL for file contents and adapters; empty: `blobs/` in the data directory."""
    presigned_seconds: int = Field(default=0, ge=0, le=604_800)
    """How long a link to the store is valid, to which downloads are redirected; 0: the API sends
    the bytes itself, as it always does from a local directory."""
    worker_token: SecretStr = SecretStr("")
    """What workers present under `/internal`; empty: `worker-token` in the data directory."""
    model_dirs: str = ""
    """Folders whose subfolders are base models, separated by colons."""
    project: str = Field(default="default", pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")
    """Second part of a tuned model's name."""
    max_file_bytes: int = Field(default=512 * 1024**2, ge=1024)
    """Largest upload in one request, bytes."""
    lease_seconds: float = Field(default=180.0, ge=1.0)
    """How long a worker may stay silent before its job is taken back."""
    janitor_seconds: float = Field(default=5.0, gt=0.0)
    """Time between two rounds of the janitor."""
    max_losses: int = Field(default=3, ge=1)
    """Lost workers after which a job fails instead of being queued again."""

    @model_validator(mode="after")
    def _fill_in_what_the_data_directory_gives(self) -> Self:
        self.data_dir = self.data_dir.expanduser().resolve()
        self.database_url = self.database_url or f"sqlite:///{self.data_dir / 'tunesmith.db'}"
        self.storage_url = self.storage_url or (self.data_dir / "blobs").as_uri()
        return self

    def base_model_folders(self) -> list[Path]:
        return [Path(part).expanduser().resolve() for part in self.model_dirs.split(":") if part]

    def prepare(self) -> None:
        """Make the data directory and the worker token, if they are not there yet."""
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.worker_token.get_secret_value():
            self.worker_token = SecretStr(
                read_or_write_secret(self.data_dir / "worker-token", secrets.token_urlsafe(32))
            )


def read_or_write_secret(path: Path, value: str) -> str:
    """Content of `path`; `value` is written there (mode 0600) when the file does not exist."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if known := path.read_text().strip():
            return known
        raise ValueError(f"{path} is empty: delete it and start again") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(value + "\n")
    return value
