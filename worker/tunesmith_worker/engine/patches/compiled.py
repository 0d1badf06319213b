"""A model's own decoder layers through torch.compile, switched on and off between steps.

Batch and length are symbols in what is compiled, so that one graph serves every shape. torch keeps
what it compiled on disk; how long that took stands beside it, for the next run's decision.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from .decoder import DecoderLayerPatch

Untyped = Any  # Any: transformers is not typed

COLD_SECONDS = 60.0
"""What compiling a model's layers takes where nothing is known: 25-60 s on two cores."""
WARM_SHARE = 0.4
"""Of that where torch has kept what it compiled: 0.35 was measured."""


class CompiledLayers:
    """Of a patched model."""

    def __init__(self, model: Untyped, layers: list[DecoderLayerPatch]) -> None:
        self._model, self._layers, self._on = model, layers, False
        self._compiled: list[Untyped] | None = None

    @property
    def estimated_seconds(self) -> float | None:
        """How long compiling is likely to take; None: it cannot be done here."""
        if not self._layers or not (torch.cuda.is_available() or shutil.which("g++")):
            return None
        try:
            return float(json.loads(self._timing_file.read_text())["seconds"])
        except (OSError, ValueError, KeyError, TypeError):  # none yet, or a damaged one
            return COLD_SECONDS

    def use(self, on: bool) -> None:
        """Run the layers compiled from now on, or not. A layer that cannot be compiled raises when
        it is first run; `is_compile_error` knows such errors."""
        if on == self._on:
            return
        if self._compiled is None:
            self._compiled = [torch.compile(layer.stock, dynamic=True) for layer in self._layers]
        for layer, compiled in zip(self._layers, self._compiled, strict=True):
            layer.replace_stock(compiled if on else None)
        self._on = on

    @contextmanager
    def first_use(self) -> Iterator[None]:
        """Around the step that compiles: notes what it took, if it succeeds."""
        known, start = self._timing_file.exists(), time.perf_counter()
        yield
        seconds = (time.perf_counter() - start) * (1.0 if known else WARM_SHARE)
        with suppress(OSError):  # the next run estimates anew
            self._timing_file.parent.mkdir(parents=True, exist_ok=True)
            part = self._timing_file.with_suffix(f".{os.getpid()}.part")
            part.write_text(json.dumps({"seconds": round(seconds, 2)}))
            part.replace(self._timing_file)

    @cached_property
    def _timing_file(self) -> Path:
        return _timing_path(self._model)


def is_compile_error(error: Exception) -> bool:
    """Whether torch's compiler raised it."""
    compiler = ("torch._dynamo", "torch._inductor")
    return any(kind.__module__.startswith(compiler) for kind in type(error).__mro__)


def _timing_path(model: Untyped) -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    facts = [model.config.to_json_string(), str(model.dtype), device, torch.__version__]
    key = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    return Path(os.fspath(cache_dir())) / f"tunesmith-{key}.json"
