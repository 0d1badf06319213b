"""The probe: some rows of tokens and the model's logits for these rows, recorded when the weights
are saved.

probe.safetensors contains the probe. The file's metadata has a checksum of each trained tensor and
the scaling of each LoRA layer, because 16-bit logits hide small differences. `engine/verify` loads
the saved weights and compares them with the logits, checksums and scaling of the probe.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import peft
import torch
from peft.tuners.lora import LoraLayer
from safetensors import safe_open
from safetensors.torch import save_file

Untyped = Any  # Any: transformers and peft are not typed

PROBE_FILE = "probe.safetensors"
PROBE_TOKENS = 64
"""Maximum number of tokens in a row of the probe."""
PROBE_LOGITS = 8
"""Number of positions at the end of a row whose logits are recorded."""
_ROWS_OF_TRAINED_TOKENS = 2
"""Maximum number of rows of the probe that contain tokens with trained embeddings."""
_METADATA = "tunesmith"


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Token rows with the model's logits and checksums, recorded when the weights are saved."""

    input_ids: torch.Tensor
    """Token rows [B, T]."""
    logits: torch.Tensor
    """Logits [B, n, V] in fp32 at the last n positions of each row."""
    tensors: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each trained tensor in the saved dtype; empty in a probe of an earlier version."""
    scaling: Mapping[str, float] = field(default_factory=dict)
    """Factor by which each LoRA layer multiplies the output of its adapter; empty without LoRA."""

    @property
    def rows(self) -> list[list[int]]:
        rows: list[list[int]] = self.input_ids.tolist()
        return rows

    def save(self, folder: Path) -> str:
        """Write probe.safetensors and return its SHA-256."""
        content = {"input_ids": self.input_ids, "logits": self.logits}
        record = {"tensors": dict(self.tensors), "scaling": dict(self.scaling)}
        path = folder / PROBE_FILE
        save_file(content, path, metadata={_METADATA: json.dumps(record, sort_keys=True)})
        return hashlib.sha256(path.read_bytes()).hexdigest()

    @classmethod
    def read(cls, folder: Path) -> Probe:
        with safe_open(folder / PROBE_FILE, framework="pt") as file:
            record = json.loads((file.metadata() or {}).get(_METADATA, "{}"))
            return cls(
                input_ids=file.get_tensor("input_ids"),
                logits=file.get_tensor("logits"),
                **record,
            )


def record_probe(model: Untyped, first: Sequence[int], dtype: torch.dtype) -> Probe:
    """Record the model in memory. `first`: token ids of a training row. `dtype`: dtype of the
    adapter's file; not used with full tuning."""
    rows = torch.tensor(probe_rows(model, first), dtype=torch.int64)
    lora = isinstance(model, peft.PeftModel)
    return Probe(
        input_ids=rows,
        logits=run_probe(model, rows),
        tensors=trained_checksums(model, dtype) if lora else weight_checksums(model),
        scaling=lora_scaling(model) if lora else {},
    )


def probe_rows(model: Untyped, first: Sequence[int]) -> list[list[int]]:
    """Return rows of equal length: the first training row, then rows that contain the tokens with
    trained embeddings."""
    row = list(first[:PROBE_TOKENS])
    size, trained = len(row), _trained_tokens(model)
    rows = [row]
    for start in range(0, min(len(trained), _ROWS_OF_TRAINED_TOKENS * size), size):
        tokens = trained[start : start + size]
        rows.append([*tokens, *row[: size - len(tokens)]])
    return rows


def _trained_tokens(model: Untyped) -> list[int]:
    if not isinstance(model, peft.PeftModel):
        return []
    indices = model.peft_config["default"].trainable_token_indices or {}
    return sorted({token for tokens in indices.values() for token in tokens})


def run_probe(model: Untyped, input_ids: torch.Tensor) -> torch.Tensor:
    """Return the model's logits [B, n, V] in fp32 for the last n tokens of each row [B, T]."""
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        # Call the forward of the class, because accelerate wraps the forward of the instance in
        # autocast.
        logits = (
            type(model)
            .forward(model, input_ids=input_ids.to(model.device), use_cache=False)
            .logits[:, -PROBE_LOGITS:]
        )
    model.train(was_training)
    result: torch.Tensor = logits.float().cpu().contiguous()
    return result


def trained_checksums(model: Untyped, dtype: torch.dtype) -> dict[str, str]:
    """Convert each trained parameter to `dtype`; return the checksums, keyed by parameter name."""
    return {
        name: checksum(parameter.detach().to(dtype))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def weight_checksums(model: Untyped) -> dict[str, str]:
    """Return the checksum of each tensor of the model's state. The keys are tensor names."""
    sums: dict[tuple[int, torch.Size], str] = {}  # a tied weight has several names
    result = {}
    for name, tensor in model.state_dict().items():
        key = (tensor.data_ptr(), tensor.shape)
        if key not in sums:
            sums[key] = checksum(tensor)
        result[name] = sums[key]
    return result


def checksum(tensor: torch.Tensor) -> str:
    """Return the SHA-256 of the tensor's bytes, without its shape."""
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(data.numpy().data).hexdigest()


def lora_scaling(model: Untyped) -> dict[str, float]:
    return {
        name: float(module.scaling["default"])
        for name, module in model.named_modules()
        if isinstance(module, LoraLayer) and "default" in module.scaling
    }
