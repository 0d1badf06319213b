"""Read the sizes for the memory prediction from a loaded model."""

from __future__ import annotations

from typing import Any

import torch

from tunesmith_schema import Precision
from tunesmith_worker.engine.model.quantization import is_nf4, scales
from tunesmith_worker.engine.optimizers.choose import optimizer_for
from tunesmith_worker.engine.optimizers.fresh_state import make_state, state_bytes

from .shapes import ModelShape, Tuning

Untyped = Any  # Any: transformers and PEFT are not typed


def read_tuning(model: Untyped, shape: ModelShape, *, full: bool, precision: Precision) -> Tuning:
    """Read the trained parameters and dtypes of a model from its tensors."""
    trained = [p for p in model.parameters() if p.requires_grad]
    frozen = [p for p in model.parameters() if not p.requires_grad]
    held = storage_bytes([*model.parameters(), *model.buffers(), *scales(model)])
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
        optimizer_bytes=optimizer_bytes(trained, full=full, precision=precision),
        tables=sum(p.shape == (shape.vocabulary, shape.hidden) for p in trained),
        whole_head=any(p is _head_weight(model) for p in trained),
        packed=any(map(is_nf4, model.modules())),
        eight_bits=any(p.dtype == torch.int8 for p in model.parameters()),
    )


def optimizer_bytes(
    trained: list[torch.nn.Parameter], *, full: bool, precision: Precision
) -> float:
    """Return the average bytes of optimiser state per trained parameter.

    To count the bytes without using memory, the function creates the optimiser for copies of the
    parameters on the meta device."""
    twins = [torch.nn.Parameter(torch.empty_like(p, device="meta")) for p in trained]
    kind, arguments = optimizer_for(precision, full=full, learning_rate=0.0, seed=0) or (
        torch.optim.AdamW,
        {"lr": 0.0},
    )
    optimizer = kind(twins, **arguments)
    make_state(optimizer)
    return state_bytes(optimizer) / max(1, sum(p.numel() for p in trained))


def _head_weight(model: Untyped) -> torch.Tensor | None:
    head = model.get_output_embeddings()
    saved = getattr(head, "modules_to_save", None)  # PEFT keeps a trained copy of the module
    if saved:
        head = next(iter(saved.values()))
    return getattr(head, "weight", None)


def _main_bytes(parameters: list[torch.nn.Parameter]) -> int:
    counts: dict[int, int] = {}
    for p in parameters:
        if p.is_floating_point():
            counts[p.dtype.itemsize] = counts.get(p.dtype.itemsize, 0) + p.numel()
    return max(counts, key=counts.__getitem__, default=4)


def storage_bytes(tensors: list[torch.Tensor]) -> int:
    """Total bytes of the tensors' storages; a shared storage counts once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def _ranks(model: Untyped) -> tuple[tuple[str, int], ...]:
    """Names of the adapted projections, each with its largest rank over all layers."""
    ranks: dict[str, int] = {}
    for path, module in model.named_modules():
        if not hasattr(module, "lora_A"):
            continue
        name = path.rpartition(".")[2]
        for rank in module.r.values():
            ranks[name] = max(ranks.get(name, 0), int(rank))
    return tuple(ranks.items())


def _has_dropout(model: Untyped) -> bool:
    return any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in model.modules())
