"""torch's random numbers, so that a step can be run again with those it had."""

from __future__ import annotations

import torch

RandomState = tuple[torch.Tensor, torch.Tensor | None]
"""The host's, and the device's where that is a GPU. Reading it does not wait for the device."""


def random_state() -> RandomState:
    on_gpu = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return torch.get_rng_state(), on_gpu


def restore_random_state(state: RandomState) -> None:
    on_cpu, on_gpu = state
    torch.set_rng_state(on_cpu)
    if on_gpu is not None:
        torch.cuda.set_rng_state(on_gpu)
