"""The worker's settings, read once at start from TUNESMITH_* variables, nowhere else.

Unsafe ones are refused, as the server does. The trainer gets none of them: it is a pure function of
its run directory.
"""

from __future__ import annotations

import os
import re
import ssl
import sys
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tunesmith_schema.model_dirs import named_folders
from tunesmith_schema.tls import tls_context
from tunesmith_schema.unsafe import check_private, check_token, check_url
from tunesmith_schema.variables import unknown_variable_warnings


class WorkerSettings(BaseSettings):
    """One process, one object. A variable that is set to nothing counts as not set."""

    model_config = SettingsConfigDict(
        env_prefix="TUNESMITH_",
        env_ignore_empty=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

    data_dir: Path = Path(".tunesmith")
    """Holds run directories and downloaded base models; closed to other users."""
    server_url: str = "http://127.0.0.1:8000"
    """Where the API is, `http` or `https`, without `/v1`."""
    ca_file: Path | None = None
    """PEM file with the API's certificate or with its authority's, for `https`; not set: the
    authorities that everybody trusts. At a loopback address the name in it is not compared."""
    broker_url: str = Field(default="", repr=False)
    """Celery broker URL: the server's."""
    worker_token: SecretStr = SecretStr("")
    """What the server knows workers by; not set: `worker-token` in the data directory."""
    model_dirs: str = ""
    """Folders whose subfolders are base models, separated by colons. One that is not there draws a
    warning at start."""
    trainer_python: str = ""
    """Interpreter that runs trainers; it needs the extra [worker]. Not set: the worker's own."""
    warm_trainer: bool = True
    """Keep one trainer process that has imported everything, so that the next job starts 3-5 s
    sooner. While the worker is idle it holds 350 MB that are its own (540 MB RSS); beside a job
    there is none. `false` on hosts where that is much."""
    release_seconds: float = Field(default=30.0, ge=0.0)
    """How long a trainer that is told to go, by SIGTERM or a drain, may take to finish its step,
    save a resume point and have it stored, before it is killed and the job goes back as it is."""
    hello_file: Path | None = None
    """A file whose time says when the server last answered this worker: a container's health."""

    @field_validator("server_url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        if not re.match(r"https?://[^/]", value):
            raise ValueError("it must begin with http:// or https:// and a host")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _refuse_what_is_unsafe(self) -> Self:
        check_url("TUNESMITH_BROKER_URL", self.broker_url, needs_password=True)
        if token := self.worker_token.get_secret_value():
            check_token("TUNESMITH_WORKER_TOKEN", token)
        return self

    @model_validator(mode="after")
    def _fill_in(self) -> Self:
        self.data_dir = self.data_dir.expanduser().resolve()
        self.ca_file = self.ca_file and self.ca_file.expanduser().resolve()
        self.trainer_python = self.trainer_python or sys.executable
        token_file = self.data_dir / "worker-token"
        if not self.worker_token.get_secret_value() and token_file.is_file():
            self.worker_token = SecretStr(token_file.read_text().strip())
        return self

    @property
    def token_cache(self) -> Path:
        """Where trainers keep tokenised files for the next run."""
        return self.data_dir / "cache" / "tokens"

    @property
    def workers(self) -> Path:
        """Where workers of this data directory show that they live."""
        return self.data_dir / "workers"

    @property
    def claims(self) -> Path:
        """Where they note what they hold."""
        return self.data_dir / "claims"

    def run_dir(self, job_id: str, attempt: int) -> Path:
        return self.data_dir / "runs" / job_id / f"attempt-{attempt}"

    @property
    def compile_cache(self) -> Path:
        """Where trainers keep what torch and triton compiled."""
        return self.data_dir / "cache" / "compiled"

    def check(self) -> None:
        """Refuse to start without what a worker cannot do without, or with files on disk that other
        users can read. Raises ValueError."""
        token_file = self.data_dir / "worker-token"
        for path, what in ((self.data_dir, "the data directory"), (token_file, "the secret in")):
            if path.exists():
                check_private(path, what)
        if not self.broker_url:
            raise ValueError("TUNESMITH_BROKER_URL is not set: give it the server's broker")
        token = self.worker_token.get_secret_value()
        if not token:
            raise ValueError(
                f"no worker token: set TUNESMITH_WORKER_TOKEN, or copy the server's worker-token "
                f"file to {self.data_dir}"
            )
        check_token(f"the token in {token_file}", token)
        self.server_trust()

    def server_trust(self) -> ssl.SSLContext | bool:
        """What httpx verifies the server's certificate with; True: by the authorities that
        everybody trusts. Raises ValueError."""
        if self.ca_file is None:
            return True
        try:
            return tls_context(self.ca_file, urlsplit(self.server_url).hostname or "")
        except OSError as error:  # ssl.SSLError is one
            raise ValueError(
                f"TUNESMITH_CA_FILE {self.ca_file} is not a file of certificates in PEM "
                f"({error.strerror or error})"
            ) from error

    def base_model_folders(self) -> list[Path]:
        return named_folders(self.model_dirs)


def unknown_variables() -> list[str]:
    """What to say of TUNESMITH_* variables that nothing reads."""
    return unknown_variable_warnings(os.environ)
