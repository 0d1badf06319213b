"""A base model with its tokenizer, loaded for serving."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from tunesmith_worker.engine.model.config_values import config_size
from tunesmith_worker.engine.rollout import eos_token_ids

from .protocol import ServingError

Untyped = Any  # Any: transformers is not typed


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


def load(name: str, folder: str, device: torch.device) -> BaseModel:
    """Load a model and its tokenizer. `folder` may be a Hugging Face id.

    Weights are fp32 on a CPU, and in the checkpoint's dtype on a GPU. Code from a model's
    repository never runs. Raises ServingError."""
    transformers.utils.logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32 if device.type == "cpu" else "auto",
            trust_remote_code=False,
            use_safetensors=True,
        )
    except Exception as error:  # a broken model can raise anything
        raise ServingError(f"model {name!r} cannot be loaded: {error}") from error
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


def weight_bytes(folder: str) -> int:
    """Return the bytes of a model folder's weight files; 0 for a Hugging Face id."""
    path = Path(folder)
    if not path.is_dir():
        return 0
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))
