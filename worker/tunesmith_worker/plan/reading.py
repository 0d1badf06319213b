"""What the memory model needs to know, read from a loaded model."""

from __future__ import annotations

from typing import Any

import torch

from tunesmith_schema import Precision

from .shapes import ModelShape, Tuning

Untyped = Any  # Any: transformers and PEFT are not typed


OPTIMIZER_BYTES = {"fp32": 8.0, "bf16_error_word": 10.0, "bf16_sr8": 2.03, "bf16": 4.0}
"""What AdamW keeps for a parameter of full tuning (docs/engine.md); an adapter's is fp32's."""


def read_tuning(model: Untyped, shape: ModelShape, *, full: bool, precision: Precision) -> Tuning:
    """Bytes are those of the tensors that are there."""
    trained = [p for p in model.parameters() if p.requires_grad]
    frozen = [p for p in model.parameters() if not p.requires_grad]
    held = storage_bytes([*model.parameters(), *model.buffers()])
    adapter = 0 if full else storage_bytes(trained)
    return Tuning(
        full=full,
        compute_bytes=4 if precision == "fp32" else 2,
        stream_bytes=_main_bytes(trained if full else frozen),
        weights=held - adapter,
        trained=sum(p.numel() for p in trained),
        adapter=adapter,
        ranks=_ranks(model),
        dropout=_has_dropout(model),
        gradient_bytes=_main_bytes(trained),
        optimizer_bytes=OPTIMIZER_BYTES[precision if full else "fp32"],
    )


def _main_bytes(parameters: list[torch.nn.Parameter]) -> int:
    """Of an element in the dtype that most of them are in, quantised ones left out."""
    counts: dict[int, int] = {}
    for p in parameters:
        if p.is_floating_point():
            counts[p.dtype.itemsize] = counts.get(p.dtype.itemsize, 0) + p.numel()
    return max(counts, key=counts.__getitem__, default=4)


def storage_bytes(tensors: list[torch.Tensor]) -> int:
    """Of all storages, each once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def _ranks(model: Untyped) -> tuple[tuple[str, int], ...]:
    """Adapted projections by name, with the largest rank of any layer."""
    found: dict[str, int] = {}
    for path, module in model.named_modules():
        if not hasattr(module, "lora_A"):
            continue
        name = path.rpartition(".")[2]
        for rank in module.r.values():
            found[name] = max(found.get(name, 0), int(rank))
    return tuple(found.items())


def _has_dropout(model: Untyped) -> bool:
    return any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in model.modules())
