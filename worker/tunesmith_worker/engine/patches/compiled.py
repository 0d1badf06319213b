"""Compile the model's stock decoder layers with torch.compile, and switch them on and off.

Batch size and length are symbolic, so one graph handles every shape. The compile time is stored
next to torch's compile cache. The next run uses it to decide whether to compile.
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
"""Estimated compile time if no measurement is stored. On two cores, 25-60 s were measured."""
WARM_SHARE = 0.4
"""Estimated compile time with torch's cache, as a fraction of the time without it. The measured
fraction was 0.35."""


class CompiledLayers:
    """Compiled stock layers of a patched model."""

    def __init__(self, model: Untyped, layers: list[DecoderLayerPatch]) -> None:
        self._model, self._layers, self._on = model, layers, False
        self._compiled: list[Untyped] | None = None

    @property
    def estimated_seconds(self) -> float | None:
        """Estimated compile time in seconds; None if layers cannot be compiled on this host."""
        if not self._layers or not (torch.cuda.is_available() or shutil.which("g++")):
            return None
        try:
            return float(json.loads(self._timing_file.read_text())["seconds"])
        except (OSError, ValueError, KeyError, TypeError):  # missing or damaged file
            return COLD_SECONDS

    def use(self, on: bool) -> None:
        """Switch compiled layers on or off.

        A layer that cannot be compiled raises an error in its first forward pass.
        `is_compile_error` recognizes such errors."""
        if on == self._on:
            return
        if self._compiled is None:
            self._compiled = [torch.compile(layer.stock, dynamic=True) for layer in self._layers]
        for layer, compiled in zip(self._layers, self._compiled, strict=True):
            layer.replace_stock(compiled if on else None)
        self._on = on

    @contextmanager
    def first_use(self) -> Iterator[None]:
        """Measure the step that compiles the layers; store the compile time if it succeeds."""
        cached, start = self._timing_file.exists(), time.perf_counter()
        yield
        seconds = (time.perf_counter() - start) * (1.0 if cached else WARM_SHARE)
        with suppress(OSError):  # the next run uses the default estimate
            self._timing_file.parent.mkdir(parents=True, exist_ok=True)
            part = self._timing_file.with_suffix(f".{os.getpid()}.part")
            part.write_text(json.dumps({"seconds": round(seconds, 2)}))
            part.replace(self._timing_file)

    @cached_property
    def _timing_file(self) -> Path:
        return _timing_path(self._model)


def is_compile_error(error: Exception) -> bool:
    """Return True if torch's compiler raised the error."""
    compiler = ("torch._dynamo", "torch._inductor")
    return any(kind.__module__.startswith(compiler) for kind in type(error).__mro__)


def _timing_path(model: Untyped) -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    facts = [model.config.to_json_string(), str(model.dtype), device, torch.__version__]
    key = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    return Path(os.fspath(cache_dir())) / f"tunesmith-{key}.json"
