"""What the memory model needs to know, read from a loaded model."""

from __future__ import annotations

from typing import Any

import torch

from .shapes import ModelShape, Tuning

Untyped = Any  # Any: transformers and PEFT are not typed


def read_tuning(model: Untyped, shape: ModelShape, *, full: bool, bf16: bool) -> Tuning:
    """`bf16`: the products run in it. Bytes are those of the tensors that are there."""
    trained = [p for p in model.parameters() if p.requires_grad]
    frozen = [p for p in model.parameters() if not p.requires_grad]
    dtypes = [p.dtype for p in frozen if p.is_floating_point()] or [p.dtype for p in trained]
    widest = max(dtypes, key=lambda dtype: dtype.itemsize)
    stream = 4 if full else 2 if bf16 else widest.itemsize
    held = storage_bytes([*model.parameters(), *model.buffers()])
    adapter = 0 if full else storage_bytes(trained)
    return Tuning(
        full=full,
        compute_bytes=2 if bf16 else 4,
        stream_bytes=stream,
        weights=held - adapter,
        trained=sum(p.numel() for p in trained),
        adapter=adapter,
        ranks=_ranks(model),
        dropout=_has_dropout(model),
        gradient_bytes=max((p.dtype.itemsize for p in trained), default=4),
    )


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
