"""Access of one API process to the inference servers."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from tunesmith_schema import ErrorCode
from tunesmith_server.children import without_secrets
from tunesmith_server.core.errors import TooManyRequests, Unavailable
from tunesmith_server.core.planes import Plane, run_in
from tunesmith_server.core.settings import Settings
from tunesmith_server.core.storage import Storage

from .process import InferenceProcess
from .protocol import Engine, EngineStatus, ServedModel
from .registry import Registry

if TYPE_CHECKING:  # importing httpx takes 0.2 s, and many servers never chat
    import httpx

    from .started_vllm import StartedVLLM

log = logging.getLogger(__name__)

MOST_OPEN = 512
"""Maximum number of open requests of one API process; further requests are refused."""
MOST_OPEN_BYTES = 32 * 1024 * 1024
"""Maximum total size of the bodies of open requests, in bytes. A body stays in memory until its
request is answered."""
MOST_OF_KEY = 128
"""Maximum number of open completions of one API key in one API process. A single request may ask
for more completions if the key has no other open request."""
FORGET_SECONDS = 30.0
"""Seconds between two checks whether registered models have been deleted."""


class Inference:
    """Requests to the inference server that the settings name."""

    def __init__(self, settings: Settings, storage: Storage) -> None:
        self._settings, self._storage = settings, storage
        self._open_engines: tuple[Registry, StartedVLLM | None] | None = None
        """First item: registry of our own process, or of the server at TUNESMITH_INFERENCE_URL.
        Second item: vLLM, if `tunesmith serve` started it."""
        self._opening = asyncio.Lock()
        self._open = self._open_bytes = 0
        self._of_key: dict[str, int] = {}

    @contextmanager
    def admitted(self, key: str, completions: int, size: int) -> Iterator[None]:
        """Count a request as open while the `with` block runs.

        Raises TooManyRequests if too many requests are open. `key`: name of the caller's API key.
        `completions`: number of answers that the request asks for. `size`: size of the request's
        body in bytes.
        """
        of_key = self._of_key.get(key, 0)
        if self._open >= MOST_OPEN or self._open_bytes + size > MOST_OPEN_BYTES:
            raise TooManyRequests(
                ErrorCode.RATE_LIMIT_EXCEEDED,
                f"{self._open} chat and completion requests with {self._open_bytes:,} bytes are "
                f"open; the limits are {MOST_OPEN} requests and {MOST_OPEN_BYTES:,} bytes",
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
        """Return the server's successful response before its body is read; the caller closes the
        response. Raises ServiceError if the inference server refuses the request or does not
        answer."""
        own, vllm = await self._opened()
        if vllm is not None and vllm.serves(model):
            response = await vllm.answer(model, path, body, request_id)
            if response is not None:
                return response
        return await own.answer(model, path, body, request_id)

    async def forget(self, model_id: str) -> None:
        """Unload a deleted model. If the inference server does not answer, log the error and
        continue."""
        for registry in self._registries():
            await registry.forget(model_id)

    async def forget_deleted(self, existing: Callable[[Sequence[str]], set[str]]) -> None:
        """Unload models whose files the server has deleted; repeat until the task is cancelled.

        `existing`: function that takes model names and returns the names whose models still exist.
        This function is called in a thread.
        """
        while True:
            await asyncio.sleep(FORGET_SECONDS)
            names = [name for registry in self._registries() for name in registry.names]
            if not names:
                continue
            try:
                left = await run_in(Plane.CHAT, partial(existing, names))
                for name in set(names) - left:
                    await self.forget(name)
            except Exception:  # the database may be unreachable; the next round tries again
                log.exception("cannot find deleted models")

    @property
    def is_on(self) -> bool:
        """Return True if the settings name an inference server or allow this process to start
        one."""
        return bool(self._settings.inference_url or self._settings.inference_child)

    async def status(self) -> EngineStatus:
        if not self.is_on:
            return EngineStatus(status="off", waiting_for=_OFF)
        if not self._open_engines and self._settings.inference_child and not self._has_vllm:
            return EngineStatus(status="not started")
        try:
            async with asyncio.timeout(2.0):
                own, vllm = await self._opened()
                status = await (vllm or own.engine).status()
                if vllm is None or status.status == "ready":
                    return status
                own_status = await own.engine.status()
                waiting = own_status.waiting_for
                vllm_waiting = f"vLLM does not answer: {status.waiting_for}"
                return EngineStatus(
                    status=own_status.status,
                    waiting_for=f"{waiting}; {vllm_waiting}" if waiting else vllm_waiting,
                )
        except Unavailable as error:
            return EngineStatus(status="unreachable", waiting_for=error.message)
        except TimeoutError:
            return EngineStatus(status="unreachable", waiting_for="no answer within 2 s")

    def serving(self, model_id: str) -> str:
        """Return `registered` if this process has registered the model, and `on_demand` if the next
        request for the model registers it. Return `off` if this server has no inference."""
        if not (self._settings.inference_url or self._settings.inference_child):
            return "off"
        is_registered = any(model_id in registry for registry in self._registries())
        return "registered" if is_registered else "on_demand"

    async def close(self) -> None:
        registries, self._open_engines = self._registries(), None
        for registry in registries:
            await registry.engine.close()

    @property
    def _has_vllm(self) -> bool:
        return self._settings.inference_vllm_socket is not None

    def _registries(self) -> list[Registry]:
        if self._open_engines is None:
            return []
        own, vllm = self._open_engines
        return [own] if vllm is None else [own, vllm.registry]

    async def _opened(self) -> tuple[Registry, StartedVLLM | None]:
        async with self._opening:
            if self._open_engines is None:
                # Importing httpx would block the event loop.
                await asyncio.to_thread(importlib.import_module, f"{__package__}.upstream")
                self._open_engines = (Registry(await self._new_engine()), self._new_vllm())
            return self._open_engines

    def _new_vllm(self) -> StartedVLLM | None:
        from .started_vllm import StartedVLLM

        settings, socket = self._settings, self._settings.inference_vllm_socket
        if socket is None:
            return None
        folder = settings.data_dir / "vllm-adapters"
        return StartedVLLM(
            self._storage, base=settings.inference_vllm_model, path=socket, folder=folder
        )

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
