"""Save and restore the state of torch's random number generators, to repeat a step exactly."""

from __future__ import annotations

import torch

RandomState = tuple[torch.Tensor, torch.Tensor | None]
"""State of the CPU's generator and, if the host has a GPU, of the GPU's generator."""


def random_state() -> RandomState:
    """Return the current state of the generators without waiting for the GPU."""
    on_gpu = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return torch.get_rng_state(), on_gpu


def restore_random_state(state: RandomState) -> None:
    on_cpu, on_gpu = state
    torch.set_rng_state(on_cpu)
    if on_gpu is not None:
        torch.cuda.set_rng_state(on_gpu)
