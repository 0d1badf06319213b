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
from contextlib import contextmanager
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
    """Of a patched model; raises nothing: what cannot be compiled runs as it is."""

    def __init__(self, model: Untyped, layers: list[DecoderLayerPatch]) -> None:
        self._layers, self._on, self._note = layers, False, _note_of(model)
        self._compiled: list[Untyped] | None = None

    @property
    def estimated_seconds(self) -> float | None:
        """How long compiling is likely to take; None: it cannot be done here."""
        if not self._layers or not (torch.cuda.is_available() or shutil.which("g++")):
            return None
        if not self._note.exists():
            return COLD_SECONDS
        return float(json.loads(self._note.read_text())["seconds"])

    def use(self, on: bool) -> None:
        """Run the layers compiled from now on, or not."""
        if on == self._on:
            return
        if self._compiled is None:
            torch._dynamo.config.suppress_errors = True  # what fails runs as it is, with a warning
            self._compiled = [torch.compile(layer.stock, dynamic=True) for layer in self._layers]
        for layer, compiled in zip(self._layers, self._compiled, strict=True):
            layer.replace_stock(compiled if on else None)
        self._on = on

    @contextmanager
    def first_use(self) -> Iterator[None]:
        """Around the step that compiles: notes what it took."""
        known, start = self._note.exists(), time.perf_counter()
        yield
        seconds = (time.perf_counter() - start) * (1.0 if known else WARM_SHARE)
        self._note.parent.mkdir(parents=True, exist_ok=True)
        self._note.write_text(json.dumps({"seconds": round(seconds, 2)}))


def _note_of(model: Untyped) -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    facts = [model.config.to_json_string(), str(model.dtype), device, torch.__version__]
    key = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    return Path(os.fspath(cache_dir())) / f"tunesmith-{key}.json"
