"""Parcel: the changed weights of one rollout as bytes, for a vLLM server in another process.

An adapter is sent as its matrices A and B, which are much smaller than the adapted weight.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import safetensors.torch
import torch


@dataclass(frozen=True)
class Item:
    """A weight that the server must load. `full` is the weight itself. If `full` is None, the
    server adds the product of the adapter's matrices `a` and `b` to the base model's weight. If `a`
    and `b` are None too, the server loads the base model's weight unchanged."""

    name: str
    full: torch.Tensor | None = None
    a: torch.Tensor | None = None
    b: torch.Tensor | None = None
    scale: float = 1.0


_PARTS = ("full", "a", "b")


def pack(items: Iterable[Item]) -> bytes:
    tensors: dict[str, torch.Tensor] = {}
    heads = []
    for number, item in enumerate(items):
        heads.append({"name": item.name, "scale": item.scale})
        for part in _PARTS:
            tensor: torch.Tensor | None = getattr(item, part)
            if tensor is not None:
                tensors[f"{number}.{part}"] = tensor.detach().contiguous()
    data: bytes = safetensors.torch.save(tensors, {"items": json.dumps(heads)})
    return data


def unpack(data: bytes) -> list[Item]:
    length = int.from_bytes(data[:8], "little")
    heads = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["items"])
    tensors = safetensors.torch.load(data)
    return [
        Item(**head, **{part: tensors.get(f"{number}.{part}") for part in _PARTS})
        for number, head in enumerate(heads)
    ]
