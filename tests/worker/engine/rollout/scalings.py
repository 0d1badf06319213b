"""Small Llamas with every kind of RoPE scaling and short contexts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers

from tests.worker.engine.patches.models import COMMON, model_of

Untyped = Any  # Any: transformers is not typed

ORIGINAL = 32
"""Length of the original context, in tokens."""
HALF = 6  # of a head

LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(HALF)],
    "long_factor": [2.0 + 0.7 * i for i in range(HALF)],
    "original_max_position_embeddings": ORIGINAL,
    "factor": 8.0,
}
SCALINGS: dict[str, dict[str, Untyped]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "beta_fast": 4.0,
    },
    "longrope": LONGROPE,
}


def make_scaled(name: str) -> Untyped:
    context = ORIGINAL if name == "dynamic" else 512
    given = COMMON | {"max_position_embeddings": context, "num_hidden_layers": 2}
    given["rope_parameters"] = {"rope_theta": 1000.0, **SCALINGS[name]}
    return model_of(transformers.LlamaConfig(**given)).eval()


def logprobs_by_prefix(model: Untyped, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """Return the log-prob of each token from a forward pass over only the tokens before it. A model
    with dynamic scaling remembers its longest sequence until it gets a short one."""
    found = []
    with torch.no_grad():
        model(input_ids=torch.tensor([[3]]), use_cache=False)
    for place, token in enumerate(tokens):
        ids = torch.tensor([[*prompt, *tokens[:place]]])
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0, -1].float()
        found.append(logits.log_softmax(-1)[token].item())
    return found
