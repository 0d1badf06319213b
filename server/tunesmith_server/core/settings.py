"""Server settings, read once at start from the environment. No other module reads the environment.
Unsafe values are refused when they are read; `prepare` refuses unsafe files."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import socket
from ipaddress import ip_network
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tunesmith_schema.model_dirs import named_folders
from tunesmith_schema.unsafe import (
    check_password,
    check_private,
    check_token,
    check_url,
    is_loopback,
)
from tunesmith_schema.variables import unknown_variable_warnings


class Settings(BaseSettings):
    """Settings of one server process. An empty variable counts as not set."""

    model_config = SettingsConfigDict(
        env_prefix="TUNESMITH_",
        env_ignore_empty=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

    data_dir: Path = Path(".tunesmith")
    """Folder of all data for which no other setting names a folder. Other users must not have
    access to it."""
    host: str = "127.0.0.1"
    """Address or name to listen on. An address that other machines can reach needs TLS or a
    proxy."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 chooses a free port."""
    tls_cert: Path | None = None
    """PEM file with the API's TLS certificate and its chain."""
    tls_key: Path | None = None
    """PEM file with the certificate's private key, without a passphrase. Other users must not be
    able to read the file."""
    trusted_proxies: str = ""
    """Comma-separated addresses and networks of the proxies that terminate TLS, or `*` if only
    proxies can reach the port. X-Forwarded-* headers are accepted only from these proxies."""
    database_url: str = Field(default="", repr=False)
    """SQLAlchemy URL of the database; the default is SQLite in the data directory."""
    broker_url: str = Field(default="", repr=False)
    """Celery broker URL, the same for server and workers. `tunesmith serve` has an embedded
    broker."""
    storage_url: str = Field(default="", repr=False)
    """obstore URL for file contents and adapters; the default is `blobs/` in the data directory."""
    aws_secret_access_key: SecretStr = Field(
        default=SecretStr(""), validation_alias="AWS_SECRET_ACCESS_KEY"
    )
    """Secret key of an `s3://` store. The client of the store reads this variable and the other
    `AWS_*` variables. The server only checks that the key is not a well-known default."""
    presigned_seconds: int = Field(default=0, ge=0, le=604_800)
    """Lifetime of presigned store URLs; the API redirects downloads to these URLs. With a lifetime
    of 0, and for content in a local directory, the API sends the bytes itself."""
    worker_token: SecretStr = SecretStr("")
    """Secret with which workers enroll, at least 16 characters. Default: content of `worker-token`
    in the data directory, which the first start of the server creates."""
    model_dirs: str = ""
    """Colon-separated folders; each of their subfolders is a base model."""
    inference_url: str = Field(default="", repr=False)
    """URL of the server that answers chat and completion requests: Tunesmith's inference process,
    or any OpenAI-compatible server. By default, `tunesmith serve` starts an inference process on
    first use."""
    inference_token: SecretStr = SecretStr("")
    """Bearer token of requests to the inference server."""
    inference_cache: Path | None = None
    """Folder of the adapters that inference has loaded. Default: `inference/` in the data
    directory. A server at TUNESMITH_INFERENCE_URL must be able to read this folder under the same
    path."""
    inference_max_lora_rank: int = Field(default=0, ge=0, le=512)
    """Value of `--max-lora-rank` of the vLLM server at TUNESMITH_INFERENCE_URL. A new job gets a
    warning if the vLLM server will not be able to load the job's adapter. 0 means no check."""
    inference_vllm_model: str = ""
    """Folder name of a base model below TUNESMITH_MODEL_DIRS. `tunesmith serve` starts vLLM with
    this model, and vLLM answers requests for the model and its adapters. Tunesmith's inference
    process answers requests for other models."""
    inference_vllm_options: str = ""
    """Further command-line options with which `tunesmith serve` starts vLLM, for example
    `--gpu-memory-utilization 0.3`."""
    inference_vllm_socket: Path | None = None
    """Unix socket of the vLLM process; set by `tunesmith serve`."""
    trainer_python: str = ""
    """Python interpreter with which `tunesmith serve` starts vLLM; the default is the server's own
    interpreter."""
    inference_child: bool = False
    """Start an inference process on first use; set by `tunesmith serve`."""
    project: str = Field(default="default", pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")
    """Name of the default project in model names, PROJECT in `ft:BASE:PROJECT:...`."""
    max_file_bytes: int = Field(default=512 * 1024**2, ge=1024)
    """Largest upload in one request, in bytes."""
    base_models: str = ""
    """Comma-separated folder names and Hugging Face ids of the base models that projects may use.
    An empty value allows all base models."""
    requests_per_minute: int = Field(default=0, ge=0, le=1_000_000)
    """Rate limit of each API key that has no limit of its own; 0 means no limit. Each API process
    counts only its own requests."""
    max_connections_per_address: int = Field(default=1000, ge=10)
    """Maximum number of connections of one client address at a time, including event streams.
    Trusted proxies have no limit."""
    lease_seconds: float = Field(default=180.0, ge=1.0)
    """Time after which a job is taken back from a worker that sends no reports."""
    janitor_seconds: float = Field(default=5.0, gt=0.0)
    """Time between two rounds of the janitor, the server's periodic task."""
    max_losses: int = Field(default=3, ge=1)
    """Number of failed attempts after which a job fails instead of being queued again. An attempt
    counts if its worker was lost, or if it failed with an error that another attempt may avoid."""
    release_seconds: float = Field(default=30.0, ge=0.0)
    """Seconds that a training process has after SIGTERM or a drain, to finish the current step and
    to store a resume point. After this time, the process is killed and the job is released."""
    resume_point_days: float = Field(default=30.0, ge=0.0)
    """Days for which a failed or cancelled job keeps its resume points, for a retry or a fork.

    Resume points kept by `recipe.keep_every` are deleted only with the job.
    """
    retry_seconds: float = Field(default=10.0, ge=0.0)
    """Delay before the retry of the first failed attempt; each further delay is three times as
    long, up to ten minutes."""

    @field_validator("trusted_proxies")
    @classmethod
    def _are_addresses(cls, value: str) -> str:
        proxies = [part.strip() for part in value.split(",") if part.strip()]
        for proxy in proxies if proxies != ["*"] else []:
            try:
                ip_network(proxy)
            except ValueError as error:  # a host name would never match an address
                raise ValueError(
                    f"{error}: give the proxy's address, or a network such as 10.0.0.0/24"
                ) from None
        return ",".join(proxies)

    @field_validator("inference_url")
    @classmethod
    def _without_v1(cls, value: str) -> str:
        if value and not re.fullmatch(r"https?://[^/\s]+(/\S*)?", value):
            raise ValueError("must be an http or https URL, for example http://127.0.0.1:8001")
        return value.rstrip("/").removesuffix("/v1")

    @field_validator("inference_vllm_options")
    @classmethod
    def _is_split(cls, value: str) -> str:
        try:
            shlex.split(value)
        except ValueError as error:
            raise ValueError(f"must be options as in a shell: {error}") from error
        return value

    @model_validator(mode="after")
    def _refuse_unsafe_values(self) -> Self:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("TUNESMITH_TLS_CERT and TUNESMITH_TLS_KEY: set both, or neither")
        if not (self.tls_cert or self.trusted_proxies or _is_local(self.host)):
            raise ValueError(
                f"TUNESMITH_HOST (--host) {self.host!r} is open to other machines, and API keys "
                "would travel unencrypted: set TUNESMITH_TLS_CERT and TUNESMITH_TLS_KEY; or "
                "TUNESMITH_TRUSTED_PROXIES, if a proxy terminates TLS; or listen on 127.0.0.1"
            )
        if token := self.worker_token.get_secret_value():
            check_token("TUNESMITH_WORKER_TOKEN", token)
        if token := self.inference_token.get_secret_value():
            check_token("TUNESMITH_INFERENCE_TOKEN", token)
        if self.inference_url and self.inference_vllm_model:
            raise ValueError(
                "TUNESMITH_INFERENCE_URL and TUNESMITH_INFERENCE_VLLM_MODEL: set only one, because "
                "one of them names a running server and the other starts one"
            )
        check_url("TUNESMITH_DATABASE_URL", self.database_url, needs_password=True)
        check_url("TUNESMITH_BROKER_URL", self.broker_url, needs_password=True)
        check_url("TUNESMITH_STORAGE_URL", self.storage_url, needs_password=False)
        key = self.aws_secret_access_key.get_secret_value()
        if key and self.storage_url.startswith("s3://"):
            check_password("AWS_SECRET_ACCESS_KEY", key)
        return self

    @model_validator(mode="after")
    def _fill_in_defaults(self) -> Self:
        self.data_dir = self.data_dir.expanduser().resolve()
        self.tls_cert = self.tls_cert and self.tls_cert.expanduser().resolve()
        self.tls_key = self.tls_key and self.tls_key.expanduser().resolve()
        self.database_url = self.database_url or f"sqlite:///{self.data_dir / 'tunesmith.db'}"
        self.storage_url = self.storage_url or (self.data_dir / "blobs").as_uri()
        return self

    def base_model_folders(self) -> list[Path]:
        return named_folders(self.model_dirs)

    def catalogue(self) -> frozenset[str] | None:
        """Return the base models that projects may use; None means all."""
        names = frozenset(name.strip() for name in self.base_models.split(",") if name.strip())
        return names or None

    @property
    def url(self) -> str:
        """URL of the API for processes on this machine, without `/v1`."""
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        scheme = "https" if self.tls_cert else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    def prepare(self) -> None:
        """Create the data directory and the worker token if they do not exist.

        Raises ValueError if other users of this machine can read the data directory, or if the
        worker token is not safe.
        """
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(self.data_dir, "the data directory")
        if not self.worker_token.get_secret_value():
            file = self.data_dir / "worker-token"
            token = read_or_write_secret(file, secrets.token_urlsafe(32))
            check_token(f"the token in {file}", token)
            self.worker_token = SecretStr(token)


def variable_warnings() -> list[str]:
    """Return warnings about TUNESMITH_* variables that no program reads."""
    return unknown_variable_warnings(os.environ)


def read_or_write_secret(path: Path, value: str) -> str:
    """Return the content of the file `path`. If the file is missing, create it with `value` (mode
    0600)."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if content := path.read_text().strip():
            check_private(path, "the secret in")
            return content
        raise ValueError(f"{path} is empty: delete it and start again") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(value + "\n")
    return value


def _is_local(host: str) -> bool:
    if is_loopback(host):
        return True
    if not host:  # the host stands for all addresses
        return False
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(
            f"TUNESMITH_HOST (--host) {host!r} is neither an address nor a name that this machine "
            f"can resolve ({error})"
        ) from None
    return all(is_loopback(str(address[0])) for *_, address in addresses)
