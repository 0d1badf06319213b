"""Base models in memory with their adapters, and counts of the requests that use them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from tunesmith_worker.engine.serving.base import BaseModel
from tunesmith_worker.engine.serving.protocol import ServingEngine

from .token_text import TokenText

Key = tuple[str, str | None, bool]
"""Folder of the model, folder of its tokenizer, and True if transformers computes the model."""


@dataclass(eq=False)
class Use:
    """Number of requests in progress, and the time of the last request."""

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
    adapter_bytes: dict[str, int] = field(default_factory=dict)

    def start(self, adapter: str | None) -> None:
        self.use.start()
        if adapter is not None:
            self.adapters[adapter].start()

    def end(self, adapter: str | None) -> None:
        self.use.end()
        if adapter is not None:
            self.adapters[adapter].end()


class LoadedModels:
    """All base models in memory.

    Any thread may call the methods; `start` never waits for an engine.
    """

    def __init__(self) -> None:
        self._models: dict[Key, Loaded] = {}
        self._guard = threading.Lock()
        """Lock that is held only for some microseconds, and never while an engine is called."""

    def all(self) -> list[Loaded]:
        with self._guard:
            return list(self._models.values())

    def get(self, key: Key) -> Loaded | None:
        with self._guard:
            return self._models.get(key)

    def add(self, key: Key, loaded: Loaded) -> None:
        with self._guard:
            self._models[key] = loaded

    def start(self, key: Key, adapter: str | None) -> Loaded | None:
        """Count a request; return None if the model or its adapter is not in memory."""
        with self._guard:
            loaded = self._models.get(key)
            if loaded is None or (adapter is not None and adapter not in loaded.adapters):
                return None
            loaded.start(adapter)
            return loaded

    def take_out(
        self, *, idle_seconds: float = 0.0, busy: bool = False, keep: Key | None = None
    ) -> Loaded | None:
        """Remove and return the least recently used model; None if there is none.

        The caller must close the model. `idle_seconds`: minimum seconds since the model's last
        request. `busy`: True to include models with requests in progress. `keep`: key of a model to
        skip.
        """
        latest = time.monotonic() - idle_seconds
        with self._guard:
            found = [
                (loaded.use.last, key)
                for key, loaded in self._models.items()
                if key != keep and (busy or (not loaded.use.users and loaded.use.last <= latest))
            ]
            return self._models.pop(min(found, key=lambda one: one[0])[1]) if found else None

    def take_out_adapter(self, loaded: Loaded) -> str | None:
        """Remove the least recently used adapter without requests; None if there is none.

        Returns the adapter's name. The caller must remove the adapter from the engine.
        """
        with self._guard:
            unused = [(use.last, name) for name, use in loaded.adapters.items() if not use.users]
            if not unused:
                return None
            name = min(unused)[1]
            del loaded.adapters[name]
            loaded.adapter_bytes.pop(name, None)
            return name
