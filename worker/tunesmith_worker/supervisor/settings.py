"""Settings of the worker, read once at start from TUNESMITH_* variables. Unsafe values are errors.

Trainers do not read these settings: a trainer depends only on its run directory.
"""

from __future__ import annotations

import os
import re
import ssl
import sys
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, TypeAdapter, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tunesmith_schema.model_dirs import named_folders
from tunesmith_schema.scheduling import WorkerLabels
from tunesmith_schema.tls import tls_context
from tunesmith_schema.unsafe import check_private, check_token, check_url
from tunesmith_schema.variables import unknown_variable_warnings


class WorkerSettings(BaseSettings):
    """Settings of one worker process. An empty variable counts as not set."""

    model_config = SettingsConfigDict(
        env_prefix="TUNESMITH_",
        env_ignore_empty=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

    data_dir: Path = Path(".tunesmith")
    """Folder of all data for which no other setting names a folder. Other users must not have
    access to it."""
    server_url: str = "http://127.0.0.1:8000"
    """URL of the API, `http` or `https`, without `/v1`."""
    ca_file: Path | None = None
    """PEM file with the certificate of the API or of its certificate authority, for `https`.
    Default: the public authorities. For a loopback address, the host name is not checked."""
    broker_url: str = Field(default="", repr=False)
    """Celery broker URL, the same for server and workers. `tunesmith serve` has an embedded
    broker."""
    worker_token: SecretStr = SecretStr("")
    """Secret with which workers enroll, at least 16 characters. Default: content of `worker-token`
    in the data directory, which the first start of the server creates."""
    model_dirs: str = ""
    """Colon-separated folders; each of their subfolders is a base model."""
    trainer_python: str = ""
    """Python interpreter for trainers, which needs Tunesmith with the extra [trainer] (transformers
    5.17 to 5.23). Default: the worker's own interpreter."""
    rollout_url: str = Field(default="", repr=False)
    """URL of a vLLM server that generates the completions of reinforcement jobs. If the server
    has another base model, the job uses another engine (docs/how-to/vllm.md). Default: completions
    are generated in the trainer's process."""
    rollout_token: SecretStr = SecretStr("")
    """API key of the vLLM server at TUNESMITH_ROLLOUT_URL."""
    warm_trainer: bool = True
    """Keep an idle trainer process with all imports done, so that the next job starts 3-5 s sooner.
    The process uses 350 MB of memory of its own (540 MB with shared libraries) while the worker is
    idle. No warm trainer runs during a job. Set `false` on hosts with little memory."""
    release_seconds: float = Field(default=30.0, ge=0.0)
    """Seconds after SIGTERM or a drain to finish the current step and store a resume point. After
    this time, the trainer is killed and the job is released."""
    worker_labels: str = ""
    """Comma-separated labels that jobs may ask for in `scheduling.worker_labels`, for example
    `gpu=h100,rack=2`."""
    hello_file: Path | None = None
    """File that the worker touches whenever the server answers, for a container's health check."""

    @field_validator("server_url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        if not re.match(r"https?://[^/]", value):
            raise ValueError("must start with http:// or https:// and a host")
        return value.rstrip("/")

    @field_validator("rollout_url")
    @classmethod
    def _is_http_or_empty(cls, value: str) -> str:
        return cls._is_http(value) if value else value

    @field_validator("worker_labels")
    @classmethod
    def _are_labels(cls, value: str) -> str:
        try:
            TypeAdapter(WorkerLabels).validate_python(_labels_in(value))
        except ValueError:
            raise ValueError(
                "must be at most 16 pairs NAME=VALUE of letters, digits, dots, hyphens and "
                "underscores, for example gpu=h100,rack=2"
            ) from None
        return value

    @model_validator(mode="after")
    def _refuse_unsafe_values(self) -> Self:
        check_url("TUNESMITH_BROKER_URL", self.broker_url, needs_password=True)
        if token := self.worker_token.get_secret_value():
            check_token("TUNESMITH_WORKER_TOKEN", token)
        return self

    @model_validator(mode="after")
    def _set_defaults(self) -> Self:
        self.data_dir = self.data_dir.expanduser().resolve()
        self.ca_file = self.ca_file and self.ca_file.expanduser().resolve()
        self.trainer_python = self.trainer_python or sys.executable
        token_file = self.data_dir / "worker-token"
        if not self.worker_token.get_secret_value() and token_file.is_file():
            self.worker_token = SecretStr(token_file.read_text().strip())
        return self

    @property
    def token_cache(self) -> Path:
        """Folder of tokenised files that trainers share."""
        return self.data_dir / "cache" / "tokens"

    @property
    def workers(self) -> Path:
        """Folder with one locked file per running worker."""
        return self.data_dir / "workers"

    @property
    def claims(self) -> Path:
        """Folder of claim records."""
        return self.data_dir / "claims"

    def run_dir(self, job_id: str, attempt: int) -> Path:
        return self.data_dir / "runs" / job_id / f"attempt-{attempt}"

    @property
    def compile_cache(self) -> Path:
        """Cache folder of compiled Triton kernels."""
        return self.data_dir / "cache" / "compiled"

    def check(self) -> None:
        """Raise ValueError if a required setting is missing or other users can read the files."""
        token_file = self.data_dir / "worker-token"
        for path, label in ((self.data_dir, "the data directory"), (token_file, "the secret in")):
            if path.exists():
                check_private(path, label)
        if not self.broker_url:
            raise ValueError(
                "TUNESMITH_BROKER_URL is not set: set it to the broker URL of the server"
            )
        token = self.worker_token.get_secret_value()
        if not token:
            raise ValueError(
                f"no worker token: set TUNESMITH_WORKER_TOKEN, or copy the server's worker-token "
                f"file to {self.data_dir}"
            )
        check_token(f"the token in {token_file}", token)
        self.server_trust()

    def server_trust(self) -> ssl.SSLContext | bool:
        """Return the TLS context for httpx; True means that httpx trusts the public certificate
        authorities.

        Raises ValueError if `ca_file` is unusable."""
        if self.ca_file is None:
            return True
        try:
            return tls_context(self.ca_file, urlsplit(self.server_url).hostname or "")
        except OSError as error:  # includes ssl.SSLError
            raise ValueError(
                f"TUNESMITH_CA_FILE {self.ca_file} is not a file of PEM certificates "
                f"({error.strerror or error})"
            ) from error

    @property
    def labels(self) -> dict[str, str]:
        return _labels_in(self.worker_labels)

    def base_model_folders(self) -> list[Path]:
        return named_folders(self.model_dirs)


def _labels_in(text: str) -> dict[str, str]:
    """Return the labels in a text such as `gpu=h100,rack=2`.

    Raises ValueError for a part without `=`.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    pairs = [part.partition("=") for part in parts]
    if not all(mark for _, mark, _ in pairs):
        raise ValueError("no NAME=VALUE")
    return {name.strip(): value.strip() for name, _, value in pairs}


def unknown_variables() -> list[str]:
    """Return a warning for each TUNESMITH_* variable that is not a setting."""
    return unknown_variable_warnings(os.environ)
