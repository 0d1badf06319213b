"""Loaded base models: loaded on first use, unloaded when idle, each with its adapters."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from dataclasses import dataclass, field

from tunesmith_worker.engine.memory.free_memory import read_free_memory
from tunesmith_worker.engine.rollout import UnsupportedModel
from tunesmith_worker.engine.serving.base import BaseModel, load, loading_bytes
from tunesmith_worker.engine.serving.native import NativeServing
from tunesmith_worker.engine.serving.protocol import (
    DoesNotFit,
    ServingEngine,
    UnsupportedAdapter,
)
from tunesmith_worker.engine.serving.stock import StockServing

from .device import Device
from .errors import ApiError
from .files import FileStore, Registration
from .settings import InferenceSettings
from .token_text import TokenText

log = logging.getLogger(__name__)

MAX_ADAPTERS = 64
"""Adapters in memory per base model."""
_USABLE = {False: 0.5, True: 0.8}
"""Share of the free memory that one model may take. Key True: on a GPU. A CPU's memory is shared
with training jobs."""
_LEAST_FREE = 1 << 26
"""Bytes of free memory that are assumed if less is free, for short prompts on a full host."""
_CACHE_SHARE = 0.25
"""Share of the remaining free memory for keys and values."""


@dataclass(frozen=True)
class _Plan:
    """Folders and adapter of a registered model."""

    name: str
    folder: str
    tokenizer: str | None = None
    """Folder of the adapter's own tokenizer, if the adapter added tokens."""
    stock: bool = False
    """True if only transformers and PEFT compute the adapter."""
    adapter: str | None = None
    """Folder of the adapter; the engine's name for it."""

    @property
    def key(self) -> tuple[str, str | None, bool]:
        return self.folder, self.tokenizer, self.stock


@dataclass(eq=False)
class Use:
    """Requests in progress, and the time of the last one."""

    users: int = 0
    last: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        self.users += 1

    def end(self) -> None:
        self.users -= 1
        self.last = time.monotonic()


@dataclass(eq=False)
class Loaded:
    """A base model in memory."""

    base: BaseModel
    engine: ServingEngine
    tokens: TokenText
    use: Use = field(default_factory=Use)
    adapters: dict[str, Use] = field(default_factory=dict)

    def has(self, adapter: str | None) -> bool:
        return adapter is None or adapter in self.adapters

    def start(self, adapter: str | None) -> None:
        self.use.start()
        if adapter is not None:
            self.adapters[adapter].start()

    def end(self, adapter: str | None) -> None:
        self.use.end()
        if adapter is not None:
            self.adapters[adapter].end()

    def drop_adapters(self, most: int) -> None:
        """Remove the adapters with the oldest use, until `most` are left or the others are in
        use."""
        unused = sorted((use.last, name) for name, use in self.adapters.items() if not use.users)
        for _, name in unused[: max(0, len(self.adapters) - most)]:
            del self.adapters[name]
            self.engine.remove_adapter(name)


class ModelPool:
    def __init__(self, settings: InferenceSettings, device: Device) -> None:
        self._settings, self._device = settings, device
        self._files = FileStore(settings.inference_cache)
        self._registered: dict[str, Registration] = {}
        self._loaded: dict[tuple[str, str | None, bool], Loaded] = {}
        """Keyed by folder of the model, folder of its tokenizer, and True for the engine of
        transformers."""
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
    def loaded_names(self) -> list[str]:
        """Names of the base models in memory."""
        return sorted(loaded.base.name for loaded in self._loaded.values())

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
            self._files.link(registration)
            self._registered[registration.id] = registration
        return missing

    def unregister(self, name: str) -> None:
        """Raises ApiError 404 if the model is not registered. Requests in progress go on."""
        registration = self._registered.pop(name, None)
        if registration is None:
            raise _not_loaded(name)
        self._files.unlink(registration)

    async def acquire(self, name: str) -> tuple[Loaded, str | None]:
        """Return the loaded model and its name for the adapter, and count a request until
        `Loaded.end`. Raises ApiError and ServingError."""
        registration = self._registered.get(name)
        if registration is None:
            raise _not_loaded(name)
        if self._device.waiting_for is not None:
            raise ApiError(
                503, f"chat waits: {self._device.waiting_for}", code="unavailable", retry_after=30
            )
        plan = self._plan(registration)
        if plan.key in self._loaded and self._loaded[plan.key].has(plan.adapter):
            loaded = self._loaded[plan.key]
        else:
            async with self._lock:
                plan, loaded = await asyncio.to_thread(self._prepare, registration)
        loaded.start(plan.adapter)
        loaded.drop_adapters(MAX_ADAPTERS)
        return loaded, plan.adapter

    def _plan(self, registration: Registration) -> _Plan:
        """Return which model and adapter answer for a registered model."""
        own = str(self._files.folder(registration))
        if registration.kind == "full":
            return _Plan(registration.id, own)
        base = registration.base
        tuned = self._registered.get(base)
        if tuned is not None and tuned.kind == "full":
            folder = str(self._files.folder(tuned))
        else:
            folder = self._settings.base_folder(base)
        if registration.kind == "base":
            return _Plan(base, folder)
        added_tokens = any(file.name == "tokenizer.json" for file in registration.files)
        return _Plan(base, folder, own if added_tokens else None, own in self._unsupported, own)

    def _prepare(self, registration: Registration) -> tuple[_Plan, Loaded]:
        plan = self._plan(registration)
        loaded = self._load(plan)
        if plan.adapter is not None and not loaded.has(plan.adapter):
            try:
                loaded.engine.add_adapter(plan.adapter, plan.adapter)
            except UnsupportedAdapter as reason:
                log.info("transformers answers for %s: %s", registration.id, reason)
                self._unsupported.add(plan.adapter)
                return self._prepare(registration)
            loaded.adapters[plan.adapter] = Use()
        return plan, loaded

    def _load(self, plan: _Plan) -> Loaded:
        """Return a model in memory."""
        if plan.key not in self._loaded:
            started = time.monotonic()
            self._check_memory(plan.name, plan.folder)
            base = load(plan.name, plan.folder, self._device.torch, plan.tokenizer)
            engine = StockServing(base) if plan.stock else self._engine(base)
            self._loaded[plan.key] = Loaded(base, engine, TokenText(base.tokenizer))
            seconds = time.monotonic() - started
            log.info("loaded %s in %.1f s; engine: %s", plan.name, seconds, engine.name)
        return self._loaded[plan.key]

    def _engine(self, base: BaseModel) -> ServingEngine:
        cache_bytes = int(max(self._free(), _LEAST_FREE) * _CACHE_SHARE)
        try:
            return NativeServing(base, cache_bytes=cache_bytes)
        except UnsupportedModel as reason:
            log.info("transformers answers for %s: %s", base.name, reason)
            return StockServing(base)

    def _check_memory(self, name: str, folder: str) -> None:
        """Raise DoesNotFit if a model's weights need more memory than chat may take."""
        free = self._free()
        usable = int(free * _USABLE[self._device.is_gpu])
        needed = loading_bytes(folder, self._device.torch)
        if needed > usable:
            raise DoesNotFit(
                f"model {name!r} needs {needed:,} bytes, but only {usable:,} of {free:,} free "
                "bytes may be used for chat: free memory or use a smaller model"
            )

    def _free(self) -> int:
        return read_free_memory(self._device.torch, 0).free

    def unload_idle(self) -> None:
        """Unload models without a request for the configured time."""
        if self._lock.locked():
            return  # a request is about to use a model
        now, before = time.monotonic(), len(self._loaded)
        for key, loaded in list(self._loaded.items()):
            idle = now - loaded.use.last
            if not loaded.use.users and idle >= self._settings.inference_idle_seconds:
                del self._loaded[key]
                loaded.engine.close()
                log.info("unloaded %s after %.0f s without a request", loaded.base.name, idle)
        if len(self._loaded) < before:
            gc.collect()

    def close(self) -> None:
        for loaded in self._loaded.values():
            loaded.engine.close()
        self._loaded.clear()


def _not_loaded(name: str) -> ApiError:
    return ApiError(404, f"model {name!r} is not loaded", code="model_not_loaded", param="model")
