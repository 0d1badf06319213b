"""Protocol between the API and an inference server, with two implementations: `native.py` for our
own process, `openai_server.py` for any other OpenAI-compatible server."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from tunesmith_schema import StoredFile

if TYPE_CHECKING:  # importing httpx takes 0.2 s, and many servers never chat
    import httpx

LIST_MODELS = "GET /v1/models lists all models"
NOT_LOADED = "model_not_loaded"
"""Error code of an inference server that does not have the model; the API then registers the
model."""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A model that can answer requests."""

    id: str
    """Name in requests."""
    kind: Literal["base", "adapter", "full"]
    """Kind of model. `base`: a base model, found by its name; `adapter`: a LoRA adapter on `base`;
    `full`: all weights, with the configuration of `base`."""
    base: ServedModel | None = None
    """Base model that the adapter or the full weights were trained from."""
    files: tuple[StoredFile, ...] = ()
    """Files of the adapter or of the full weights; empty for a base model."""

    @property
    def digest(self) -> str:
        """Hash of the model's kind, the id of its base model, and the names and contents of its
        files."""
        parts = [self.kind, self.base.id if self.base else ""]
        parts += [f"{file.name} {file.sha256}" for file in self.files]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class EngineStatus:
    """State of the inference server, for /readyz."""

    status: str
    """State of the server: `not started`, `ready`, `loading`, `waiting` or `unreachable`."""
    waiting_for: str | None = None
    """Reason, if the state is `waiting` or `unreachable`."""


class Engine(Protocol):
    """An inference server. `send`, `register` and `forget` raise Unavailable if the inference
    server does not answer."""

    async def send(self, path: str, body: bytes, request_id: str) -> httpx.Response:
        """Send a request and return the response before its body is read; the caller closes the
        response. `path` is below `/v1`. `request_id`: id under which the server logs a failure."""

    async def register(self, model: ServedModel) -> None:
        """Make the server answer requests for `model`; its base is already registered."""

    async def forget(self, model_id: str) -> None:
        """Make the server refuse requests for a deleted model."""

    async def status(self) -> EngineStatus:
        """Return the state of the inference server within about two seconds; never raises."""

    async def close(self) -> None:
        """Close all connections, and end a process that was started for this engine."""
