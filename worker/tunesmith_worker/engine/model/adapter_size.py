"""How many bytes an adapter's file will have, to the byte, before anything is trained."""

from __future__ import annotations

import json
from typing import Any

import peft
import torch

from tunesmith_worker.rundir.plan import Choices

Untyped = Any  # Any: peft is not typed


def adapter_tensors(model: Untyped) -> dict[str, torch.Tensor]:
    """What stock PEFT writes for `model`'s adapter, by the names of its file."""
    # Asked for "auto", PEFT would look on the hub whether the vocabulary was resized.
    state = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: tensor.detach() for name, tensor in state.items()}


def predict_bytes(model: Untyped, dtype: torch.dtype) -> int:
    """Size of adapter_model.safetensors; `model` may lie on the meta device.

    8 bytes of length, a JSON header padded to 8, then the numbers:
    https://huggingface.co/docs/safetensors#format.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in sorted(adapter_tensors(model).items()):
        begin, end = end, end + tensor.numel() * dtype.itemsize
        kind = {torch.bfloat16: "BF16", torch.float32: "F32"}[dtype]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return 8 + -(-len(text) // 8) * 8 + end


def settle_size(model: Untyped, dtype: torch.dtype, choices: Choices) -> int:
    """`predict_bytes`, written down."""
    numbers = sum(tensor.numel() for tensor in adapter_tensors(model).values())
    return choices.resolve(
        "adapter_bytes",
        "auto",
        predict_bytes(model, dtype),
        f"{numbers:,} numbers of {dtype.itemsize} bytes, and their names",
    )
