"""A base model with its tokenizer, loaded for serving."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open

from tunesmith_worker.engine.model.config_values import config_size
from tunesmith_worker.engine.model.softcap import keep_softcap
from tunesmith_worker.engine.rollout import eos_token_ids

from .protocol import ServingError, cannot_load

Untyped = Any  # Any: transformers is not typed

_SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I8": 1, "U8": 1}
"""Bytes per element of safetensors' dtypes."""


@dataclass(frozen=True)
class BaseModel:
    name: str
    folder: str
    model: Untyped
    tokenizer: Untyped
    context: int | None
    """Maximum number of token positions; None if the configuration does not set it."""
    eos_ids: frozenset[int]
    vocabulary: int
    """Number of rows of the embedding."""


def load(
    name: str, folder: str, device: torch.device, tokenizer_folder: str | None = None
) -> BaseModel:
    """Load a model and its tokenizer. `folder` may be a Hugging Face id.

    `tokenizer_folder`: folder of an adapter that added tokens. The tokenizer is read from this
    folder, and the embedding grows to the tokenizer's number of tokens. Weights are fp32 on a CPU,
    and in the checkpoint's dtype on a GPU. Code from a model's repository never runs. Raises
    ServingError."""
    transformers.utils.logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            tokenizer_folder or folder, trust_remote_code=False
        )
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32 if device.type == "cpu" else "auto",
            trust_remote_code=False,
            use_safetensors=True,
        )
        if tokenizer_folder and len(tokenizer) > model.get_input_embeddings().num_embeddings:
            model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        keep_softcap(model)
    except Exception as error:  # a broken model can raise anything
        raise cannot_load(f"model {name!r}", error) from error
    if not tokenizer.is_fast:
        raise ServingError(f"model {name!r} has no fast tokenizer (tokenizer.json)")
    return BaseModel(
        name=name,
        folder=folder,
        model=model.to(device).eval().requires_grad_(False),
        tokenizer=tokenizer,
        context=config_size(config.get_text_config(), "max_position_embeddings"),
        eos_ids=eos_token_ids(model, tokenizer),
        vocabulary=int(model.get_input_embeddings().weight.shape[0]),
    )


def loading_bytes(name: str, folder: str, device: torch.device) -> int:
    """Return the peak memory in bytes while a model is loaded. `folder` may be a Hugging Face id;
    the size is then computed from the model's configuration. Raises ServingError.

    The peak includes a second copy of the weights, which exists while the decoder packs the weights
    (see serving/weights.py)."""
    path = Path(folder)
    if not path.is_dir():
        return 2 * _bytes_of_hub_model(name, folder, device)
    total = 0
    for file in path.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118  # a safetensors file is not a dict
                part = tensors.get_slice(key)
                size = 4 if device.type == "cpu" else _SIZES.get(part.get_dtype(), 4)
                total += math.prod(part.get_shape()) * size
    return 2 * total


def _bytes_of_hub_model(name: str, folder: str, device: torch.device) -> int:
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # a broken model can raise anything
        raise cannot_load(f"model {name!r}", error) from error
    dtype = getattr(config, "dtype", None)
    size = 4 if device.type == "cpu" or dtype is None else dtype.itemsize
    return int(size * sum(parameter.numel() for parameter in model.parameters()))
