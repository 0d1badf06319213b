"""The inference server of one API process: opened on first use, models registered on demand."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tunesmith_schema import ErrorCode
from tunesmith_server.children import without_secrets
from tunesmith_server.core.errors import NotFound, ServiceError, TooManyRequests, Unavailable
from tunesmith_server.core.settings import Settings
from tunesmith_server.core.storage import Storage

from .process import InferenceProcess
from .protocol import LIST_MODELS, NOT_LOADED, Engine, EngineStatus, ServedModel

if TYPE_CHECKING:  # importing httpx takes 0.2 s, and many servers never chat
    import httpx

log = logging.getLogger(__name__)

MOST_OPEN = 512
"""Requests that one API process has open at a time; the inference server has its own queue."""
MOST_OPEN_BYTES = 32 * 1024 * 1024
"""Bytes of the bodies of these requests, which stay in memory until they are answered."""


class Inference:
    """Requests to the inference server that the settings name."""

    def __init__(self, settings: Settings, storage: Storage) -> None:
        self._settings, self._storage = settings, storage
        self._engine: Engine | None = None
        self._opening = asyncio.Lock()
        self._registered: dict[str, str] = {}
        """Digest of each model that this process has registered, by name."""
        self._registering: dict[str, asyncio.Lock] = {}
        self._open = self._open_bytes = 0

    @contextmanager
    def admitted(self, size: int) -> Iterator[None]:
        """Count an open request with a body of `size` bytes. Raises TooManyRequests if too many are
        open."""
        if self._open >= MOST_OPEN or self._open_bytes + size > MOST_OPEN_BYTES:
            raise TooManyRequests(
                ErrorCode.RATE_LIMIT_EXCEEDED,
                f"{self._open} chat and completion requests with {self._open_bytes:,} bytes are "
                f"open; at most {MOST_OPEN} with {MOST_OPEN_BYTES:,} bytes may be",
                hint="repeat the request after some seconds",
            )
        self._open += 1
        self._open_bytes += size
        try:
            yield
        finally:
            self._open -= 1
            self._open_bytes -= size

    async def answer(self, model: ServedModel, path: str, body: bytes) -> httpx.Response:
        """Return the server's successful response before its body is read; the caller closes it.
        Raises ServiceError if the server refuses the request or does not answer."""
        from .upstream import error_of, refusal  # imports httpx

        engine = await self._opened()
        if self._registered.get(model.id) != model.digest:
            await self._register(engine, model)
        response = await engine.send(path, body)
        if response.is_success:
            return response
        error = await error_of(response)
        if response.status_code == 404 and error.code in (NOT_LOADED, None):
            # The server has restarted since, or is one that unloads models.
            self._forget_with_base(model)
            await self._register(engine, model)
            response = await engine.send(path, body)
            if response.is_success:
                return response
            error = await error_of(response)
        if response.status_code == 404 and error.code == NOT_LOADED:
            raise Unavailable(
                ErrorCode.UNAVAILABLE, "the inference server has restarted",
                hint="repeat the request",
            )  # fmt: skip
        if response.status_code == 404:
            raise NotFound(
                ErrorCode.MODEL_NOT_FOUND,
                f"the inference server does not have {model.id!r}: {error.message}"[:1000],
                param="model",
                hint=error.hint or LIST_MODELS,
            )
        raise refusal(response, error)

    async def forget(self, model_id: str) -> None:
        """Unload a deleted model; if the server does not answer, only log it."""
        if self._engine is not None and self._registered.pop(model_id, ""):
            try:
                await self._engine.forget(model_id)
            except ServiceError as error:
                log.warning("inference keeps the deleted model %s: %s", model_id, error.message)

    async def status(self) -> EngineStatus:
        if not (self._settings.inference_url or self._settings.inference_child):
            return EngineStatus(status="off", waiting_for=_OFF)
        if self._engine is None and self._settings.inference_child:
            return EngineStatus(status="not started")
        try:
            async with asyncio.timeout(2.0):
                return await (await self._opened()).status()
        except Unavailable as error:
            return EngineStatus(status="unreachable", waiting_for=error.message)
        except TimeoutError:
            return EngineStatus(status="unreachable", waiting_for="no answer within 2 s")

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    async def _register(self, engine: Engine, model: ServedModel) -> None:
        if model.base is not None and model.base.kind != "base":
            await self._register(engine, model.base)
        lock = self._registering.setdefault(model.id, asyncio.Lock())
        async with lock:
            if self._registered.get(model.id) != model.digest:
                await engine.register(model)
                self._registered[model.id] = model.digest

    def _forget_with_base(self, model: ServedModel | None) -> None:
        while model is not None:
            self._registered.pop(model.id, "")
            model = model.base

    async def _opened(self) -> Engine:
        async with self._opening:
            if self._engine is None:
                # Importing httpx would block the event loop.
                await asyncio.to_thread(importlib.import_module, f"{__package__}.upstream")
                self._engine = await self._new_engine()
            return self._engine

    async def _new_engine(self) -> Engine:
        from .native import NativeEngine
        from .upstream import is_ours

        settings = self._settings
        if not settings.inference_url and not settings.inference_child:
            raise Unavailable(ErrorCode.UNAVAILABLE, "this server has no inference", hint=_OFF)
        if not settings.inference_url:
            return NativeEngine(self._storage, process=_process(settings))
        url, token = settings.inference_url, settings.inference_token.get_secret_value()
        if await is_ours(url, token):
            return NativeEngine(self._storage, url=url, token=token)
        from .openai_server import OpenAIServer

        folder = settings.data_dir / "inference"
        return OpenAIServer(
            self._storage, url=url, token=token, folder=settings.inference_cache or folder
        )


def _process(settings: Settings) -> InferenceProcess:
    cache = settings.inference_cache or settings.data_dir / "inference"
    env = without_secrets({**os.environ}) | {
        "TUNESMITH_INFERENCE_CACHE": str(cache),
        "TUNESMITH_MODEL_DIRS": settings.model_dirs,
    }
    return InferenceProcess(env, settings.data_dir / "logs" / "inference.log")


_OFF = "start `tunesmith serve`, or set TUNESMITH_INFERENCE_URL"
