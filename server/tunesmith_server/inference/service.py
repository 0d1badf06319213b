"""Access of one API process to the inference server. Models are registered when a request needs
them."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from tunesmith_schema import ErrorCode
from tunesmith_server.children import without_secrets
from tunesmith_server.core.errors import NotFound, ServiceError, TooManyRequests, Unavailable
from tunesmith_server.core.planes import Plane, run_in
from tunesmith_server.core.settings import Settings
from tunesmith_server.core.storage import Storage

from .process import InferenceProcess
from .protocol import LIST_MODELS, NOT_LOADED, Engine, EngineStatus, ServedModel

if TYPE_CHECKING:  # importing httpx takes 0.2 s, and many servers never chat
    import httpx

log = logging.getLogger(__name__)

MOST_OPEN = 512
"""Maximum number of open requests of one API process; the inference server has its own queue."""
MOST_OPEN_BYTES = 32 * 1024 * 1024
"""Maximum total size of the bodies of open requests, in bytes. A body stays in memory until its
request is answered."""
MOST_OF_KEY = 128
"""Maximum number of open completions of one API key in one API process. A single request may be
larger."""
ABSENT_SECONDS = 10.0
"""Time in which a model is not registered again after the server refused it as unknown."""
FORGET_SECONDS = 30.0
"""Seconds between two checks whether registered models have been deleted."""


class Inference:
    """Requests to the inference server that the settings name."""

    def __init__(self, settings: Settings, storage: Storage) -> None:
        self._settings, self._storage = settings, storage
        self._engine: Engine | None = None
        self._opening = asyncio.Lock()
        self._registered: dict[str, tuple[str, int]] = {}
        """Digest and registration number of each model that this process has registered, by
        name."""
        self._registrations = count()
        self._registering: dict[str, asyncio.Lock] = {}
        self._absent: dict[str, tuple[str, float, NotFound]] = {}
        """Models that the server does not have: digest, time of the next try, error."""
        self._open = self._open_bytes = 0
        self._of_key: dict[str, int] = {}
        """Number of open completions of each API key."""

    @contextmanager
    def admitted(self, key: str, completions: int, size: int) -> Iterator[None]:
        """Count an open request. Raises TooManyRequests if too many are open. `key`: name of the
        caller's API key. `completions`: number of answers that the request asks for. `size`: bytes
        of its body."""
        of_key = self._of_key.get(key, 0)
        if self._open >= MOST_OPEN or self._open_bytes + size > MOST_OPEN_BYTES:
            raise TooManyRequests(
                ErrorCode.RATE_LIMIT_EXCEEDED,
                f"{self._open} chat and completion requests with {self._open_bytes:,} bytes are "
                f"open; at most {MOST_OPEN} with {MOST_OPEN_BYTES:,} bytes may be",
                hint="repeat the request after some seconds",
            )
        if of_key and of_key + completions > MOST_OF_KEY:
            raise TooManyRequests(
                ErrorCode.RATE_LIMIT_EXCEEDED,
                f"this key has {of_key} completions open, and the request asks for {completions} "
                f"more; at most {MOST_OF_KEY} are allowed",
                hint="wait for earlier answers",
            )
        self._open += 1
        self._open_bytes += size
        self._of_key[key] = of_key + completions
        try:
            yield
        finally:
            self._open -= 1
            self._open_bytes -= size
            self._of_key[key] -= completions
            if not self._of_key[key]:
                del self._of_key[key]

    async def answer(
        self, model: ServedModel, path: str, body: bytes, request_id: str
    ) -> httpx.Response:
        """Return the server's successful response before its body is read; the caller closes it.
        Raises ServiceError if the server refuses the request or does not answer."""
        from .upstream import error_of, refusal  # imports httpx

        self._refuse_absent(model)
        engine = await self._opened()
        for may_repeat in (True, False):
            registered = await self._ensure_registered(engine, model)
            response = await engine.send(path, body, request_id)
            if response.is_success:
                return response
            error = await error_of(response)
            if response.status_code != 404 or error.code not in (NOT_LOADED, None):
                break
            if may_repeat:  # the server has restarted since, or unloads models by itself
                self._forget_registrations(registered)
        if response.status_code == 404 and error.code == NOT_LOADED:
            raise Unavailable(
                ErrorCode.UNAVAILABLE, "the inference server has restarted",
                hint="repeat the request",
            )  # fmt: skip
        if response.status_code == 404:
            absent = NotFound(
                ErrorCode.MODEL_NOT_FOUND,
                f"the inference server does not have {model.id!r}: {error.message}"[:1000],
                param="model",
                hint=error.hint or LIST_MODELS,
            )
            self._absent[model.id] = (model.digest, time.monotonic() + ABSENT_SECONDS, absent)
            raise absent
        raise refusal(response, error)

    def _refuse_absent(self, model: ServedModel) -> None:
        """Raise the last error again if the server refused this model as unknown a moment ago."""
        digest, end, error = self._absent.get(model.id, ("", 0.0, None))
        if error is not None and digest == model.digest and time.monotonic() < end:
            raise error
        self._absent.pop(model.id, None)

    async def forget(self, model_id: str) -> None:
        """Unload a deleted model. If the server does not answer, log this and continue."""
        known = self._registered.pop(model_id, None)
        if self._engine is not None and known is not None:
            try:
                await self._engine.forget(model_id)
            except ServiceError as error:
                log.warning("inference keeps the deleted model %s: %s", model_id, error.message)

    async def forget_deleted(self, existing: Callable[[Sequence[str]], set[str]]) -> None:
        """Unload models that were deleted, until cancelled. `existing`: function that returns which
        of the given names are still models of this server; called in a thread."""
        while True:
            await asyncio.sleep(FORGET_SECONDS)
            if not (names := [*self._registered]):
                continue
            try:
                left = await run_in(Plane.CHAT, partial(existing, names))
                for name in set(names) - left:
                    await self.forget(name)
                    self._registering.pop(name, None)
            except Exception:  # the database may be unreachable; the next round tries again
                log.exception("cannot find deleted models")

    @property
    def is_on(self) -> bool:
        """Return True if the settings name an inference server, or let this process start one."""
        return bool(self._settings.inference_url or self._settings.inference_child)

    async def status(self) -> EngineStatus:
        if not self.is_on:
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

    def serving(self, model_id: str) -> str:
        """Return `registered` for a model that this process has registered, else `on_demand`; `off`
        if this server has no inference."""
        if not (self._settings.inference_url or self._settings.inference_child):
            return "off"
        return "registered" if model_id in self._registered else "on_demand"

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    async def _ensure_registered(
        self, engine: Engine, model: ServedModel
    ) -> dict[str, tuple[str, int]]:
        """Register a model and its base model if necessary; return their registrations by name."""
        registered = {}
        if model.base is not None and model.base.kind != "base":
            registered = await self._ensure_registered(engine, model.base)
        async with self._registering.setdefault(model.id, asyncio.Lock()):
            if self._registered.get(model.id, ("", 0))[0] != model.digest:
                await engine.register(model)
                self._registered[model.id] = (model.digest, next(self._registrations))
            return registered | {model.id: self._registered[model.id]}

    def _forget_registrations(self, registered: dict[str, tuple[str, int]]) -> None:
        """Remove these registrations, but keep newer registrations of other requests."""
        for name, registration in registered.items():
            if self._registered.get(name) == registration:
                del self._registered[name]

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
        if not self.is_on:
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
