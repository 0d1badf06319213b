"""The order in which prompts come: whole groups, the same on every attempt."""

from __future__ import annotations

from collections.abc import Iterator

import torch


class GroupOrder(torch.utils.data.Sampler[int]):
    """Indices of prompts, each `num_generations` times in a row; every `prompts_per_step` of them
    are repeated for each of `num_iterations` optimiser steps. What is left of an epoch's prompts
    beyond whole steps is not drawn in it."""

    def __init__(
        self,
        prompts: int,
        *,
        prompts_per_step: int,
        num_generations: int,
        num_iterations: int,
        seed: int,
    ) -> None:
        super().__init__()
        self._prompts, self._seed, self._epoch = prompts, seed, 0
        self._per_step, self._generations = prompts_per_step, num_generations
        self._iterations = num_iterations

    def set_epoch(self, epoch: int) -> None:
        """Of the next iteration: an order of its own, whatever was drawn before."""
        self._epoch = epoch

    def __len__(self) -> int:
        steps = self._prompts // self._per_step
        return steps * self._per_step * self._generations * self._iterations

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed((self._seed << 16) + self._epoch)
        order = torch.randperm(self._prompts, generator=generator).tolist()
        for start in range(0, self._prompts - self._per_step + 1, self._per_step):
            for _ in range(self._iterations):
                for prompt in order[start : start + self._per_step]:
                    yield from [prompt] * self._generations
