"""States of the random number generators of Python, NumPy and torch.

torch's generators also produce the masks of LoRA dropout. Stochastic rounding has no state, because
it depends only on seed, step and parameter. The row order is not saved, because it depends only on
seed and epoch.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

Json = dict[str, Any]  # Any: JSON


def random_numbers() -> tuple[Json, dict[str, torch.Tensor]]:
    """Return the states of Python and NumPy as JSON, and torch's states as uint8 tensors."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    plain = {
        "python": {"version": version, "words": list(words), "gauss": gauss},
        "numpy": {
            "kind": kind,
            "keys": [int(key) for key in keys],
            "position": position,
            "has_gauss": has_gauss,
            "cached_gaussian": cached,
        },
    }
    tensors = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states = torch.cuda.get_rng_state_all()
        tensors |= {f"random.cuda.{index}": state for index, state in enumerate(states)}
    return plain, tensors


def restore_random_numbers(plain: Json, tensors: dict[str, torch.Tensor]) -> None:
    """Restore all random states except those of GPUs that this host lacks."""
    python, numpy = plain["python"], plain["numpy"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
    keys = np.array(numpy["keys"], dtype=np.uint32)
    drawn = (numpy["position"], numpy["has_gauss"], numpy["cached_gaussian"])
    np.random.set_state((numpy["kind"], keys, *drawn))
    torch.set_rng_state(tensors["random.cpu"])
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        state = tensors.get(f"random.cuda.{index}")
        if state is not None:
            torch.cuda.set_rng_state(state, index)
