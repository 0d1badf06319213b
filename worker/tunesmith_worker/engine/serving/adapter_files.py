"""Read a saved LoRA adapter for the native engine.

The module reads only plain LoRA on linear layers, and rows of the embedding or the head that were
trained for single tokens (PEFT's trainable tokens). For every other adapter, UnsupportedAdapter is
raised with the reason. The engine `transformers` then serves this adapter with PEFT.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from .protocol import ServingError, UnsupportedAdapter, cannot_load

_PLAIN: Mapping[str, object] = {
    "use_dora": False,
    "lora_bias": False,
    "bias": "none",
    "fan_in_fan_out": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "modules_to_save": None,
    "target_parameters": None,
    "layer_replication": None,
    "use_qalora": False,
    "alora_invocation_tokens": None,
    "arrow_config": None,
}
"""PEFT settings that change the computation, each with its value in plain LoRA."""
_PREFIX = "base_model.model."
_PADDED = 3
"""Maximum factor by which padding enlarges an adapter's matrices. The engine joins the query, key
and value projections into one, and pads the adapter's matrices with zeros to the joined size."""


@dataclass(frozen=True)
class LoraPair:
    a: torch.Tensor
    """LoRA's matrix A, [r, in]."""
    b: torch.Tensor
    """LoRA's matrix B, [out, r]."""


@dataclass(frozen=True)
class AdapterFile:
    scale: float
    rank: int
    """Largest rank of a module."""
    modules: dict[str, LoraPair]
    """Pairs of LoRA matrices, keyed by the module's path in the base model."""
    token_ids: tuple[int, ...] = ()
    """Ids of the tokens whose rows of the embedding or the head are trained."""
    token_rows: dict[str, torch.Tensor] | None = None
    """Trained rows [k, hidden] of the embedding and the head; the keys are their paths in the base
    model."""


def read_adapter(folder: Path) -> AdapterFile:
    """Read adapter_config.json and adapter_model.safetensors.

    Raises UnsupportedAdapter for adapters of other kinds, and ServingError if the files are
    damaged."""
    try:
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "adapter_model.safetensors")
    except Exception as error:  # safetensors raises its own class of errors
        raise cannot_load("the adapter", error) from error
    _check_plain(config)
    pairs: dict[str, dict[str, torch.Tensor]] = {}
    rows: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):  # it would make the answers of other adapters NaN
            raise ServingError(f"the adapter's tensor {name} has values that are not finite")
        path = name.removeprefix(_PREFIX)
        module, _, part = path.rpartition(".lora_")
        if path.endswith(".trainable_tokens_delta"):
            module = path.removesuffix(".trainable_tokens_delta").removesuffix(".token_adapter")
            rows[module] = tensor
        elif part in ("A.weight", "B.weight"):
            pairs.setdefault(module, {})[part[0]] = tensor
        else:
            raise UnsupportedAdapter(f"the adapter has the tensor {name}")
    modules = {}
    for module, parts in pairs.items():
        if parts.keys() != {"A", "B"}:
            raise ServingError(f"the adapter has only one of the two LoRA matrices of {module}")
        modules[module] = LoraPair(parts["A"], parts["B"])
    ranks = {len(pair.a) for pair in modules.values()}
    rank = int(config["r"])
    if ranks - {rank}:
        raise UnsupportedAdapter(
            f"the adapter's matrices have ranks {sorted(ranks)}, but its adapter_config.json "
            f"has r={rank}"
        )
    alpha = float(config["lora_alpha"])
    return AdapterFile(
        scale=alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank,
        rank=rank,
        modules=modules,
        token_ids=_token_ids(config, rows),
        token_rows=rows or None,
    )


def adapter_bytes(folder: str) -> int:
    """Return an upper bound of an adapter's bytes in memory; 0 if its file cannot be read.

    The size in memory is larger than the size of the file, because the engine stores the matrices
    in fp32 and pads them."""
    try:
        with safe_open(Path(folder) / "adapter_model.safetensors", framework="pt") as tensors:
            names = list(tensors.keys())
            numbers = sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
            return int(_PADDED * 4 * numbers)
    except (OSError, SafetensorError):  # `read_adapter` reports them
        return 0


def _check_plain(config: dict[str, Any]) -> None:  # Any: JSON values
    if config.get("peft_type") != "LORA":
        raise UnsupportedAdapter(f"PEFT type {config.get('peft_type')}")
    for name, plain in _PLAIN.items():
        value = config.get(name, plain)
        if value != plain and value not in (None, [], {}):
            raise UnsupportedAdapter(f"{name}={value!r}")


def _token_ids(config: dict[str, Any], rows: dict[str, torch.Tensor]) -> tuple[int, ...]:
    if not rows:
        return ()
    chosen = config.get("trainable_token_indices") or []
    lists = list(chosen.values()) if isinstance(chosen, dict) else [chosen]
    if not lists[0] or any(ids != lists[0] for ids in lists):
        raise UnsupportedAdapter("embedding and head have different trained tokens")
    return tuple(lists[0])
