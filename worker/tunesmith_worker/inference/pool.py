"""Loaded base models: loaded on first use, unloaded when idle, each with its adapters."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from dataclasses import dataclass, field

from tunesmith_worker.engine.memory.free_memory import read_free_memory
from tunesmith_worker.engine.serving.base import BaseModel, load, weight_bytes
from tunesmith_worker.engine.serving.native import NativeServing
from tunesmith_worker.engine.serving.protocol import (
    DoesNotFit,
    ServingEngine,
)

from .device import Device
from .errors import ApiError
from .files import FileStore, Registration
from .settings import InferenceSettings
from .token_text import TokenText

log = logging.getLogger(__name__)

_USABLE = {False: 0.5, True: 0.8}
"""Share of the free memory that one model may take. Key True: on a GPU. A CPU's memory is shared
with training jobs."""
_CACHE_SHARE = 0.25
"""Share of the remaining free memory for keys and values."""


@dataclass(eq=False)
class Loaded:
    """A base model in memory."""

    base: BaseModel
    engine: ServingEngine
    adapters: set[str] = field(default_factory=set)
    token_text: TokenText | None = None
    users: int = 0
    """Requests in progress."""
    last_used: float = field(default_factory=time.monotonic)


class ModelPool:
    def __init__(self, settings: InferenceSettings, device: Device) -> None:
        self._settings, self._device = settings, device
        self._files = FileStore(settings.inference_cache)
        self._registered: dict[str, Registration] = {}
        self._loaded: dict[tuple[str, str], Loaded] = {}
        """By folder of the model and name of the engine."""
        self._lock = asyncio.Lock()
        self._unsupported: set[str] = set()
        """Adapters that plain PEFT computes."""

    @property
    def files(self) -> FileStore:
        return self._files

    @property
    def names(self) -> list[str]:
        return sorted(self._registered)

    @property
    def is_loading(self) -> bool:
        return self._lock.locked()

    @property
    def engines(self) -> list[ServingEngine]:
        return [loaded.engine for loaded in self._loaded.values()]

    def register(self, registration: Registration) -> list[str]:
        """Make a model answerable; return the names of missing files, if any."""
        missing = self._files.missing(registration.files)
        if not missing and self._registered.get(registration.id) != registration:
            self._forget_adapter(registration.id)
            self._registered[registration.id] = registration
        return missing

    def unregister(self, name: str) -> None:
        """Raises ApiError 404 if the model is not registered."""
        registration = self._registered.pop(name, None)
        if registration is None:
            raise _not_loaded(name)
        self._forget_adapter(name)
        self._files.unlink(registration)

    def _forget_adapter(self, name: str) -> None:
        self._unsupported.discard(name)
        for loaded in self._loaded.values():
            if name in loaded.adapters and not loaded.users:
                loaded.adapters.discard(name)
                loaded.engine.remove_adapter(name)

    async def acquire(self, name: str) -> tuple[Loaded, str | None]:
        """Return the loaded model and the adapter's name, and count a user. Call `release` after
        the request. Raises ApiError and ServingError."""
        registration = self._registered.get(name)
        if registration is None:
            raise _not_loaded(name)
        if self._device.waiting_for is not None:
            raise ApiError(
                503, f"chat waits: {self._device.waiting_for}", code="unavailable", retry_after=30
            )
        async with self._lock:
            loaded, adapter = await asyncio.to_thread(self._prepare, registration)
            loaded.users += 1
        return loaded, adapter

    def release(self, loaded: Loaded) -> None:
        loaded.users -= 1
        loaded.last_used = time.monotonic()

    def _prepare(self, registration: Registration) -> tuple[Loaded, str | None]:
        if registration.kind == "base":
            return self._load(
                registration.base, self._settings.base_folder(registration.base)
            ), None
        if registration.kind == "full":
            folder = self._files.link(registration)
            return self._load(registration.id, str(folder)), None
        folder_of_base = self._settings.base_folder(registration.base)
        loaded = self._load(registration.base, folder_of_base)
        if registration.id not in loaded.adapters:
            loaded.engine.add_adapter(registration.id, str(self._files.link(registration)))
            loaded.adapters.add(registration.id)
        return loaded, registration.id

    def _load(self, name: str, folder: str) -> Loaded:
        key = (folder, "native")
        if key not in self._loaded:
            started = time.monotonic()
            free = self._free()
            usable = int(free * _USABLE[self._device.is_gpu])
            # On a CPU, weights are fp32 and are packed into a second copy while loading.
            needed = 2 * weight_bytes(folder)
            if needed > usable:
                raise DoesNotFit(
                    f"model {name!r} needs {needed:,} bytes, but only {usable:,} of {free:,} free "
                    "bytes may be used for chat: free memory or use a smaller model"
                )
            base = load(name, folder, self._device.torch)
            cache = int(max(self._free(), 1 << 26) * _CACHE_SHARE)
            self._loaded[key] = Loaded(base, NativeServing(base, cache_bytes=cache))
            log.info("loaded %s in %.1f s", name, time.monotonic() - started)
        return self._loaded[key]

    def _free(self) -> int:
        return read_free_memory(self._device.torch, 0).free

    def unload_idle(self) -> None:
        """Unload models without a request for the configured time."""
        now = time.monotonic()
        for key, loaded in list(self._loaded.items()):
            idle = now - loaded.last_used
            if not loaded.users and idle >= self._settings.inference_idle_seconds:
                del self._loaded[key]
                loaded.engine.close()
                log.info("unloaded %s after %.0f s without a request", loaded.base.name, idle)
        gc.collect()

    def close(self) -> None:
        for loaded in self._loaded.values():
            loaded.engine.close()
        self._loaded.clear()


def _not_loaded(name: str) -> ApiError:
    return ApiError(404, f"model {name!r} is not loaded", code="model_not_loaded", param="model")
