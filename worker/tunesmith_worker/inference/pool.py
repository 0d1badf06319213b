"""Loaded base models: loaded on first use, unloaded when idle or when training needs memory."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from tunesmith_worker.engine.rollout import UnsupportedModel
from tunesmith_worker.engine.serving.adapter_files import adapter_bytes
from tunesmith_worker.engine.serving.base import BaseModel, load, loading_bytes
from tunesmith_worker.engine.serving.native import NativeServing
from tunesmith_worker.engine.serving.protocol import (
    DoesNotFit,
    ServingEngine,
    UnsupportedAdapter,
)
from tunesmith_worker.engine.serving.stock import StockServing
from tunesmith_worker.rundir.device_use import DeviceUse

from .budget import (
    CACHE_SHARE,
    LEAST_FREE,
    USABLE,
    free_memory,
    is_planning,
    release_memory,
    trainers_on,
)
from .device import Device
from .errors import ApiError
from .files import FileStore, Registration
from .loaded import Key, Loaded, LoadedModels, Use
from .settings import InferenceSettings
from .token_text import TokenText

log = logging.getLogger(__name__)

MAX_ADAPTERS = 64
"""Maximum number of adapters in memory for each base model."""
PLANNING_SECONDS = 30.0
"""Maximum seconds that a request waits while a training job measures the free memory."""
REST = 1.0
"""Pause after each step of chat, as a multiple of the step's duration, while a job trains on the
same CPU. Low priority alone is not enough, because chat also uses CPU caches and memory
bandwidth."""
_PLANNING = "a training job measures the free memory"
_FOR_TRAINING = "the model was unloaded, because a training job needs its memory"
_STOCK_ANSWERS = "transformers answers for %s, because the native engine does not support it: %s"


@dataclass(frozen=True)
class _Plan:
    name: str
    folder: str
    tokenizer: str | None = None
    stock: bool = False
    """True if transformers and PEFT compute the adapter, because the native engine cannot."""
    adapter: str | None = None
    """Folder of the adapter. The engine uses this path as the adapter's name."""

    @property
    def key(self) -> Key:
        return self.folder, self.tokenizer, self.stock


class ModelPool:
    def __init__(self, settings: InferenceSettings, device: Device) -> None:
        self._settings, self.device = settings, device
        self._files = FileStore(settings.inference_cache, settings.inference_cache_bytes)
        self._registered: dict[str, Registration] = {}
        self._models = LoadedModels()
        self._lock = asyncio.Lock()
        """Lock that is held while models or adapters are loaded or unloaded."""
        self._changing = asyncio.Lock()
        """Lock that is held while models are registered or deleted."""
        self._unsupported: set[str] = set()
        """Adapters that PEFT computes, because the native engine does not support them."""
        self._trainers: dict[str, DeviceUse] = {}
        self._may_take = asyncio.Event()
        """Event that is cleared while a training job measures the free memory."""
        self._may_take.set()

    @property
    def files(self) -> FileStore:
        return self._files

    @property
    def names(self) -> list[str]:
        return sorted(self._registered)

    @property
    def loaded_names(self) -> list[str]:
        """Names of the base models in memory."""
        return sorted(loaded.base.name for loaded in self._models.all())

    @property
    def is_loading(self) -> bool:
        return self._lock.locked()

    @property
    def waiting_for(self) -> str | None:
        """Reason why new requests wait or are refused; None if requests are answered."""
        if self.device.waiting_for is None and not self._may_take.is_set():
            return _PLANNING
        return self.device.waiting_for

    @property
    def engines(self) -> list[ServingEngine]:
        return [loaded.engine for loaded in self._models.all()]

    async def register(self, registration: Registration) -> list[str]:
        """Make a model available to requests; return the names of missing files, if any."""
        async with self._changing:
            missing = self._files.missing(registration.files)
            before = self._registered.get(registration.id)
            if not missing and before != registration:
                await asyncio.to_thread(self._files.link, registration)
                self._registered[registration.id] = registration
                if before and self._files.folder(before) != self._files.folder(registration):
                    await asyncio.to_thread(self._files.unlink, before)
                for lost in await asyncio.to_thread(
                    self._files.bound, [*self._registered.values()]
                ):
                    del self._registered[lost.id]
                    log.info("deleted the files of %s: the folder is full", lost.id)
            return missing

    async def unregister(self, name: str) -> None:
        """Raises ApiError 404 if the model is not registered. Requests in progress continue."""
        async with self._changing:
            registration = self._registered.pop(name, None)
            if registration is None:
                raise _not_loaded(name)
            await asyncio.to_thread(self._files.unlink, registration)

    async def acquire(self, name: str) -> tuple[Loaded, str | None]:
        """Return the loaded model, and the adapter's name in the model's engine.

        The request counts as in progress until `Loaded.end` is called. Raises ApiError and
        ServingError."""
        while True:
            await self._wait_for_memory()
            registration = self._registered.get(name)
            if registration is None:
                raise _not_loaded(name)
            plan = self._plan(registration)
            if loaded := self._models.start(plan.key, plan.adapter):
                return loaded, plan.adapter
            async with self._lock:
                if self.waiting_for is None:
                    plan = await asyncio.to_thread(self._prepare, registration)
                    if loaded := self._models.start(plan.key, plan.adapter):
                        return loaded, plan.adapter

    async def _wait_for_memory(self) -> None:
        if self.device.waiting_for is None:
            try:
                await asyncio.wait_for(self._may_take.wait(), PLANNING_SECONDS)
                return
            except TimeoutError:
                pass
        raise ApiError(503, f"chat waits: {self.waiting_for}", code="unavailable", retry_after=30)

    def _plan(self, registration: Registration) -> _Plan:
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

    def _prepare(self, registration: Registration) -> _Plan:
        plan = self._plan(registration)
        self._files.used(registration)
        loaded = self._load(plan)
        if plan.adapter is not None and plan.adapter not in loaded.adapters:
            try:
                self._add_adapter(registration.id, plan, loaded)
            except UnsupportedAdapter as reason:
                log.info(_STOCK_ANSWERS, registration.id, reason)
                self._unsupported.add(plan.adapter)
                return self._prepare(registration)
        return plan

    def _load(self, plan: _Plan) -> Loaded:
        loaded = self._models.get(plan.key)
        if loaded is None:
            started = time.monotonic()
            needed = loading_bytes(plan.name, plan.folder, self.device.torch)
            self._make_room(f"model {plan.name!r}", needed)
            base = load(plan.name, plan.folder, self.device.torch, plan.tokenizer)
            engine = StockServing(base) if plan.stock else self._engine(base)
            engine.rest(self._rest)
            loaded = Loaded(base, engine, TokenText(base.tokenizer))
            self._models.add(plan.key, loaded)
            seconds = time.monotonic() - started
            log.info("loaded %s in %.1f s; engine: %s", plan.name, seconds, engine.name)
        return loaded

    def _add_adapter(self, name: str, plan: _Plan, loaded: Loaded) -> None:
        assert plan.adapter is not None
        while len(loaded.adapters) >= MAX_ADAPTERS and self._drop_adapter(loaded):
            pass
        size = adapter_bytes(plan.adapter)
        # The matrices of all adapters are one tensor, which is copied.
        needed = sum(loaded.adapter_bytes.values()) + 2 * size
        self._make_room(f"adapter {name!r}", needed, loaded, plan.key)
        loaded.engine.add_adapter(plan.adapter, plan.adapter)
        loaded.adapters[plan.adapter], loaded.adapter_bytes[plan.adapter] = Use(), size

    def _engine(self, base: BaseModel) -> ServingEngine:
        try:
            return NativeServing(base, cache_bytes=self._cache_bytes())
        except UnsupportedModel as reason:
            log.info(_STOCK_ANSWERS, base.name, reason)
            return StockServing(base)

    @property
    def _rest(self) -> float:
        return REST if self._trainers and not self.device.is_gpu else 0.0

    def _cache_bytes(self) -> int:
        return int(max(self._free(), LEAST_FREE) * CACHE_SHARE)

    def _make_room(
        self, what: str, needed: int, loaded: Loaded | None = None, keep: Key | None = None
    ) -> None:
        """Unload the least recently used adapters and models until `needed` bytes fit.

        `loaded`: model whose unused adapters are unloaded first. `keep`: key of a model that stays
        loaded. Raises DoesNotFit.
        """
        while True:
            free = self._free()
            usable = int(free * USABLE[self.device.is_gpu])
            if needed <= usable:
                return
            if loaded is not None and self._drop_adapter(loaded):
                continue
            if not self._unload(reason="a request needs another model", keep=keep):
                break
        raise DoesNotFit(
            f"{what} needs {needed:,} bytes, but only {usable:,} of {free:,} free bytes may be "
            "used for chat: free memory or use a smaller model"
        )

    def _free(self) -> int:
        return free_memory(self.device, self._trainers)

    def _drop_adapter(self, loaded: Loaded) -> bool:
        name = self._models.take_out_adapter(loaded)
        if name is not None:
            loaded.engine.remove_adapter(name)
        return name is not None

    def _unload(
        self, *, reason: str, idle_seconds: float = 0.0, busy: bool = False, keep: Key | None = None
    ) -> bool:
        loaded = self._models.take_out(idle_seconds=idle_seconds, busy=busy, keep=keep)
        if loaded is None:
            return False
        name = loaded.base.name
        loaded.engine.close(_FOR_TRAINING if busy else "the model was unloaded")
        del loaded
        release_memory()
        log.info("unloaded %s: %s", name, reason)
        return True

    async def unload_idle(self) -> None:
        """Unload models that had no request for the configured time."""
        if self._lock.locked():
            return  # a request is about to use a model
        seconds = self._settings.inference_idle_seconds
        async with self._lock:
            await asyncio.to_thread(self._unload_all, f"idle for {seconds:.0f} s", seconds)

    def _unload_all(self, reason: str, idle_seconds: float = 0.0, *, busy: bool = False) -> None:
        while self._unload(reason=reason, idle_seconds=idle_seconds, busy=busy):
            pass

    async def yield_to(self, uses: Mapping[str, DeviceUse]) -> dict[str, int]:
        """Free memory for training jobs that request memory.

        Return the number of each trainer's latest fulfilled request for memory (`DeviceUse.stage`);
        the keys are the trainers' names.

        While a job measures the free memory, nothing is loaded and no request starts."""
        trainers = trainers_on(self.device, uses)
        changed, self._trainers = trainers != self._trainers, trainers
        if changed:
            await self._adapt([use for use in trainers.values() if is_planning(use)])
        return {name: use.stage for name, use in trainers.items()}

    async def _adapt(self, planning: list[DeviceUse]) -> None:
        if planning:
            self._may_take.clear()
        everything = any(use.everything for use in planning)
        async with self._lock:
            if planning:
                reason = "a training job asks for memory"
                await asyncio.to_thread(self._unload_all, reason, busy=everything)
            size = 0 if planning else self._cache_bytes()
            for engine in self.engines:
                engine.limit_cache(size)
                engine.rest(self._rest)
        if not planning:
            self._may_take.set()

    async def move_to(self, device: Device) -> None:
        """Unload all models, then answer requests on `device` or wait for a free device.

        Running answers end with an error.
        """
        async with self._lock:
            self.device = device
            reason = "its device is needed for training"
            await asyncio.to_thread(self._unload_all, reason, busy=True)

    def close(self) -> None:
        for loaded in self._models.all():
            loaded.engine.close()
        self._files.close()


def _not_loaded(name: str) -> ApiError:
    return ApiError(404, f"model {name!r} is not loaded", code="model_not_loaded", param="model")
