"""Faults of saving. Each fault damages a folder of saved weights as a faulty writer would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
Fault = Callable[[Path], None]


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def edit_json(path: Path, **changes: Any) -> None:  # Any: JSON
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def lose_a_module(folder: Path) -> None:
    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "layers.1.mlp.up_proj" in name]:
            del tensors[name]

    edit_tensors(folder, drop)


def double_alpha(folder: Path) -> None:
    alpha = json.loads((folder / CONFIG).read_text())["lora_alpha"]
    edit_json(folder / CONFIG, lora_alpha=2 * alpha)


def zero_one_b(folder: Path) -> None:
    def zero(tensors: dict[str, torch.Tensor]) -> None:
        name = next(name for name in tensors if "layers.0.self_attn.q_proj.lora_B" in name)
        tensors[name] = torch.zeros_like(tensors[name])

    edit_tensors(folder, zero)


def swap_two_layers(folder: Path) -> None:
    """Every tensor is in the file, two of them under each other's name."""

    def swap(tensors: dict[str, torch.Tensor]) -> None:
        first, second = (f"layers.{i}.self_attn.q_proj.lora_A" for i in (0, 1))
        a = next(name for name in tensors if first in name)
        b = next(name for name in tensors if second in name)
        tensors[a], tensors[b] = tensors[b], tensors[a]

    edit_tensors(folder, swap)


def name_another_base(folder: Path) -> None:
    edit_json(folder / CONFIG, base_model_name_or_path="acme/other")


def lose_token_rows(folder: Path) -> None:
    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "trainable_tokens" in name]:
            del tensors[name]

    edit_tensors(folder, drop)
    edit_json(folder / CONFIG, trainable_token_indices=None)


def truncate(folder: Path) -> None:
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[:-100])


def untie_the_head(folder: Path) -> None:
    """The embedding is written once, as for a tied model, but the config says that it is not."""
    edit_json(folder / "config.json", tie_word_embeddings=False)


def put_stale_weights(stale: Path) -> Fault:
    """The weights of an earlier step, with the probe of the last one."""

    def put(folder: Path) -> None:
        (folder / WEIGHTS).write_bytes((stale / WEIGHTS).read_bytes())

    return put
