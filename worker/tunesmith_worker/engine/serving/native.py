"""Serving engine for the model families that the rollout decoder computes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tunesmith_worker.engine.rollout.architecture import read_architecture
from tunesmith_worker.engine.rollout.rope_tables import RopeTables
from tunesmith_worker.engine.rollout.sampling import Uniforms
from tunesmith_worker.rundir.process import keep_freed_memory

from .adapter_files import AdapterFile, read_adapter
from .base import BaseModel
from .decoder import ServingDecoder
from .grammar import Grammars
from .loop import EngineLoop
from .protocol import UNLOADED, Figures, QueueFull, Stream, UnsupportedAdapter
from .rows import Row, prompt_scores_of
from .scheduler import Scheduler
from .text import TextStream
from .token_rows import TrainedRows
from .weights import ServingWeights

log = logging.getLogger(__name__)

Untyped = Any  # Any: transformers is not typed


class NativeServing:
    """`ServingEngine` with continuous batching and several adapters per batch."""

    name = "native"

    def __init__(
        self, base: BaseModel, *, cache_bytes: int, max_rows: int = 64, max_queue: int = 256
    ) -> None:
        """Raises UnsupportedModel if the decoder cannot compute the model.

        The engine takes the weights from the model, so the model cannot be used afterwards."""
        architecture = read_architecture(base.model)
        keep_freed_memory()
        self.context = base.context
        self._base, self._max_queue = base, max_queue
        self._embedding = architecture.embedding
        self._multiplier = architecture.embedding_multiplier
        self._paths = {path: module for path, module in base.model.named_modules()}
        self._head = architecture.head
        with torch.inference_mode():
            self._weights = ServingWeights(base.model, architecture)
        tables = RopeTables(architecture.rotary, architecture.dtype, architecture.device)
        self._decoder = ServingDecoder(architecture, self._weights, tables)
        self._scheduler = _OnThread(self._decoder, tables, max_rows, cache_bytes)
        self._grammars = Grammars(base.tokenizer, architecture.vocabulary, base.eos_ids)
        self._loop = EngineLoop(self._scheduler, base.name)

    def submit(self, streams: Sequence[Stream]) -> None:
        rows = [self._row(stream) for stream in streams]
        queued = self._scheduler.queued
        if queued + len(rows) > self._max_queue:
            raise QueueFull(
                f"{queued} requests wait for this model, and the limit is {self._max_queue}: send "
                "the request again later",
                retry_after=5,
            )

        def add() -> None:
            for row in rows:
                self._scheduler.add(row)

        self._loop.post(add)

    def _row(self, stream: Stream) -> Row:
        request, schema = stream.request, stream.request.json_schema
        return Row(
            stream=stream,
            text=TextStream(self._base.tokenizer.backend_tokenizer, request.stop),
            uniforms=Uniforms(request.seed),
            matcher=None if schema is None else self._grammars.matcher(schema),
            prompt_scores=prompt_scores_of(request),
        )

    def cancel(self, streams: Sequence[Stream]) -> None:
        self._loop.cancel(streams)

    def add_adapter(self, name: str, folder: str) -> None:
        adapter = read_adapter(Path(folder))
        rows = self._trained_rows(adapter)

        def add() -> None:
            self._weights.bank.add(name, adapter)
            if rows is not None:
                self._decoder.token_rows.add(name, rows)

        self._loop.call(add)

    def _trained_rows(self, adapter: AdapterFile) -> TrainedRows | None:
        if adapter.token_rows is None:
            return None
        tied = self._embedding.weight.data_ptr() == self._head.weight.data_ptr()
        found: dict[str, torch.Tensor] = {}
        for path, rows in adapter.token_rows.items():
            module = self._paths.get(path)
            if module is self._embedding:
                found["embedding"] = rows
            elif module is self._head:
                found["head"] = rows
            else:
                raise UnsupportedAdapter(
                    f"the adapter has trained rows for single tokens in {path}"
                )
        if tied:
            found.setdefault("head", found["embedding"])
        if getattr(self._head, "bias", None) is not None and "head" in found:
            raise UnsupportedAdapter(
                "the adapter has trained rows for single tokens in a head with a bias"
            )
        device = self._embedding.weight.device
        return TrainedRows(
            ids=torch.tensor(adapter.token_ids, device=device),
            embedding=found["embedding"].to(device) if "embedding" in found else None,
            head=found["head"].to(device) if "head" in found else None,
            multiplier=self._multiplier,
        )

    def remove_adapter(self, name: str) -> None:
        def remove() -> None:
            self._weights.bank.remove(name)
            self._decoder.token_rows.remove(name)
            self._scheduler.forget(name)

        self._loop.call(remove)

    def figures(self) -> Figures:
        return self._scheduler.figures()

    def rest(self, share: float) -> None:
        self._loop.rest = share

    def limit_cache(self, cache_bytes: int) -> None:
        self._loop.post(lambda: self._scheduler.limit(cache_bytes))

    def close(self, reason: str = UNLOADED) -> None:
        self._loop.close(reason)
        self._weights.close()


class _OnThread(Scheduler):
    def step(self) -> Any:
        with torch.inference_mode():
            return super().step()
