"""vLLM that `tunesmith serve` has started, for requests to one base model and its adapters.

If vLLM does not answer or will not load an adapter, our own inference process answers the
request."""

from __future__ import annotations

import contextlib
import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from tunesmith_server.core.errors import (
    BadRequest,
    EngineFailed,
    NotFound,
    ServiceError,
    Unavailable,
)
from tunesmith_server.core.storage import Storage

from .openai_server import OpenAIServer
from .protocol import EngineStatus, ServedModel
from .registry import Registry

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

_ENGINE = "x-tunesmith-engine"


class StartedVLLM:
    """Requests to vLLM through its Unix socket."""

    def __init__(self, storage: Storage, *, base: str, path: Path, folder: Path) -> None:
        """`base`: name of the base model. `path`: vLLM's Unix socket. `folder`: folder from which
        vLLM reads adapters."""
        self._base, self._path = base, str(path)
        server = OpenAIServer(
            storage, url="http://vllm", token="", folder=folder, socket=self._path
        )
        self.registry = Registry(server)
        self._refused: dict[str, str] = {}
        """Digest of each adapter that vLLM will not load; the keys are model names."""
        self._answers: bool | None = None

    def serves(self, model: ServedModel) -> bool:
        """Return True if requests for this model go to vLLM first."""
        if model.kind == "adapter":
            is_on_base = model.base == ServedModel(id=self._base, kind="base")
            return is_on_base and self._refused.get(model.id) != model.digest
        return model.kind == "base" and model.id == self._base

    async def answer(
        self, model: ServedModel, path: str, body: bytes, request_id: str
    ) -> httpx.Response | None:
        """Return vLLM's successful response before its body is read, or None if our own process
        must answer instead. Raises ServiceError if vLLM refuses the content of the request."""
        if not self._listens():  # it starts; an error for each request would fill the log
            self._note_failure("it does not listen yet")
            return None
        try:
            await self.registry.ensure_registered(model)
        except Unavailable as error:
            self._note_failure(error.message)
            return None
        except ServiceError as error:
            if isinstance(error, BadRequest):
                self._refused[model.id] = model.digest
            log.warning(
                "vLLM does not load %s, so our own inference process answers: %s",
                model.id, error.message,
            )  # fmt: skip
            return None
        try:
            response = await self.registry.answer(model, path, body, request_id)
        except (Unavailable, NotFound, EngineFailed) as error:
            self._note_failure(error.message)
            return None
        response.headers[_ENGINE] = "vllm"
        if not self._answers:
            self._answers = True
            log.info("vLLM answers requests for %s and its adapters", self._base)
        return response

    async def status(self) -> EngineStatus:
        return await self.registry.engine.status()

    async def close(self) -> None:
        await self.registry.engine.close()

    def _listens(self) -> bool:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as plug:
            plug.setblocking(False)
            try:
                plug.connect(self._path)
            except BlockingIOError:  # many requests connect
                return True
            except OSError:
                return False
        return True

    def _note_failure(self, reason: str) -> None:
        if self._answers is not False:
            self._answers = False
            log.warning(
                "vLLM does not answer, so our own inference process answers for %s: %s",
                self._base, reason,
            )  # fmt: skip
