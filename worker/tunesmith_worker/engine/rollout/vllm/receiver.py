"""Receive weights from a trainer in another process, and merge adapters into the base model.

With the option `--worker-extension-cls`, vLLM adds the methods of `WeightReceiver` to its worker
class. The trainer calls these methods by name over HTTP (`/collective_rpc`). For each rollout, the
server reads the base model's files again, which is fast because the operating system caches files
in memory. Only processes with vLLM import this module.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from tunesmith_kernels.lora import Adapter, Projection

from ..fold import checksum
from ..weights import merged_weight
from . import loaded
from .parcel import unpack
from .tied_head import refresh_tied_head
from .wire import LOGPROBS_MODE

Untyped = Any  # Any: vLLM is not typed here


class WeightReceiver:
    """Methods of vLLM's worker that our trainer calls. `self` is the worker."""

    model_runner: Untyped
    tunesmith_parts: list[bytes]

    def tunesmith_begin(self) -> dict[str, str]:
        """Prepare for the parts of a new parcel (see parcel.py): delete the parts of an unfinished
        one."""
        self.tunesmith_parts = []
        return {}

    def tunesmith_add(self, part: str) -> dict[str, str]:
        """Store a part of a parcel; the part is encoded in base64."""
        self.tunesmith_parts.append(base64.b64decode(part))
        return {}

    def tunesmith_load(self, weights_id: str) -> dict[str, int]:
        """Load the weights of the parcel, which get the id `weights_id`."""
        loaded.weights = ""
        parcel = unpack(b"".join(self.tunesmith_parts))
        self.tunesmith_parts = []
        base = _BaseModel(self.model_runner)

        def weights() -> Iterator[tuple[str, torch.Tensor]]:
            for item in parcel:
                if item.full is not None:
                    yield item.name, base.on_device(item.full)
                    continue
                weight = base.weight(item.name)
                if item.a is not None and item.b is not None:
                    adapter = Adapter(base.keep(item.a), base.keep(item.b), item.scale)
                    weight = merged_weight(Projection(weight, None, adapter), weight.dtype)
                yield item.name, weight

        with torch.no_grad():
            self.model_runner.reload_weights(weights_iterator=weights())
            refresh_tied_head(self.model_runner.get_model())
        loaded.weights = weights_id
        return {"weights": len(parcel)}

    def tunesmith_missing_options(self) -> dict[str, str]:
        """Return a dict whose keys are the required options that the server was started without."""
        model, scheduler = (
            self.model_runner.vllm_config.model_config,
            self.model_runner.vllm_config.scheduler_config,
        )
        options = {
            "--logits-processors and VLLM_USE_V2_MODEL_RUNNER=0": loaded.has_sampler,
            f"--logprobs-mode {LOGPROBS_MODE}": model.logprobs_mode == LOGPROBS_MODE,
            "--max-logprobs 2": model.max_logprobs == -1 or model.max_logprobs >= 2,
            "--no-async-scheduling": not scheduler.async_scheduling,
        }
        return {name: "missing" for name, is_set in options.items() if not is_set}

    def tunesmith_checksums(self, *names: str) -> dict[str, int]:
        """Return a checksum of each named weight that the base model has."""
        base = _BaseModel(self.model_runner)
        return {name: checksum(base.weight(name)) for name in names if name in base}

    def tunesmith_base_model(self) -> dict[str, str]:
        """Return the folder and the dtype of the base model."""
        config = self.model_runner.model_config
        return {"folder": str(config.model), "dtype": str(config.dtype).removeprefix("torch.")}


class _BaseModel:
    """Weights of the base model that the server was started with, read from the model's folder."""

    def __init__(self, runner: Untyped) -> None:
        self._dtype: torch.dtype = runner.model_config.dtype
        self._device: torch.device = runner.device
        folder = Path(runner.model_config.model)
        self._files: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safetensors.safe_open(path, "pt") as file:
                self._files.update(dict.fromkeys(file.keys(), path))

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def weight(self, name: str) -> torch.Tensor:
        with safetensors.safe_open(self._files[name], "pt") as file:
            return self.on_device(file.get_tensor(name))

    def on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, self._dtype)

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device)
