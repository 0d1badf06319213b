"""Time and memory limits of the comparison with plain torch, and samples of a step that fit the
limits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tunesmith_worker.engine.memory.free_memory import read_free_memory
from tunesmith_worker.trainer.selfcheck.check_context import (
    ReinforcementContext,
    SupervisedContext,
)

from .expected import GROUP_TOKENS

Untyped = Any  # Any: transformers is not typed

SECONDS = 5.0
"""The whole step is compared if the comparison takes at most SECONDS seconds, or at most SHARE of
the run's remaining time."""
SHARE = 0.015
COST = 3.0
"""Assumed maximum time of a step in plain torch, divided by the run's time for the same step.

The same factor is assumed if the run's own code repeats the step
(docs/contributing/log/numerics.md).
"""
MEMORY_SHARE = 0.5
"""Share of free memory that plain torch may take."""
LEAST_TOKENS = 16
"""Minimum number of compared tokens, if only a sample of a step is compared."""


@dataclass(frozen=True, kw_only=True)
class TimeLimit:
    spent: float
    """Seconds that the run's own step took."""
    allowed: float
    """Seconds that the comparison may take."""

    def fits(self, share: float) -> bool:
        """Return True if the allowed time is enough to compare this share of the step's tokens."""
        return COST * self.spent * share <= self.allowed

    def sample(self, tokens: int) -> int:
        """Return how many tokens may be compared, at least LEAST_TOKENS. `tokens`: number of tokens
        of the step."""
        share = min(1.0, self.allowed / max(COST * self.spent, 1e-9))
        return max(LEAST_TOKENS, int(tokens * share))

    @property
    def text(self) -> str:
        return f"the whole step would take more than {self.allowed:.0f} s"


def share_of_step(context: SupervisedContext | ReinforcementContext) -> float:
    """Return the share of a step that can be compared within SHARE of the run's remaining time. The
    result may exceed 1."""
    steps: int = context.train_plan.total_steps - context.trainer.state.global_step
    return SHARE * steps / COST


def time_limit(context: SupervisedContext | ReinforcementContext) -> TimeLimit:
    """Return the time limit of the comparison of the current step."""
    trainer = context.trainer
    float(trainer.guard.norm)  # waits for the device
    spent = time.perf_counter() - trainer.guard.current_step.began
    steps = context.train_plan.total_steps - trainer.state.global_step
    return TimeLimit(spent=spent, allowed=max(SECONDS, SHARE * steps * spent))


@dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    longest: int
    """Maximum tokens of a row."""
    tensors: frozenset[str] | None
    """Names of the trained tensors whose gradients are compared; None for all."""
    group_tokens: int
    """Maximum tokens of a forward pass in plain torch, unless a single row has more."""
    text: str
    """Text that gives the memory needed for the whole step, and the free memory."""


def memory_limit(context: SupervisedContext | ReinforcementContext, longest: int) -> MemoryLimit:
    """Return the limits of a comparison that takes at most half of the free memory.

    `longest`: tokens of the longest row. If gradients of all weights need more than a quarter of
    the free memory, only evenly spaced tensors are compared."""
    model = context.model
    free = read_free_memory(context.trainer.args.device, 0).free
    room = int(MEMORY_SHARE * free)
    trained = {n: 12 * p.numel() for n, p in model.named_parameters() if p.requires_grad}
    weights = sum(trained.values())
    needed = weights + activation_bytes(model, longest)
    text = f"the whole step needs {needed >> 20:,} MiB, and {free >> 20:,} MiB are free"
    if needed <= room:
        return MemoryLimit(longest=longest, tensors=None, group_tokens=GROUP_TOKENS, text=text)
    tensors = None
    if 2 * weights > room:
        names, sizes = list(trained), list(trained.values())
        chosen = evenly_spaced(sizes, room // 2)
        tensors = frozenset(names[place] for place in chosen)
        weights = sum(sizes[place] for place in chosen)
    if weights + activation_bytes(model, longest) > room:
        # The run's own code repeats a sample of rows, so its gradients are in memory twice.
        room -= sum(p.numel() * p.itemsize for p in model.parameters() if p.requires_grad)
        while longest and weights + activation_bytes(model, longest) > room:
            longest = longest * 3 // 4
    return MemoryLimit(longest=longest, tensors=tensors, group_tokens=longest, text=text)


def evenly_spaced(sizes: Sequence[int], most: int) -> list[int]:
    """Return the indices of evenly spaced items whose sizes sum to at most `most`.

    If each evenly spaced item is larger than `most`, return the index of the smallest item.
    """
    every = max(1, -(-sum(sizes) // max(most, 1)))
    chosen: list[int] = []
    for place in range(0, len(sizes), every):
        if sizes[place] <= most:
            chosen.append(place)
            most -= sizes[place]
    return chosen or [min(range(len(sizes)), key=sizes.__getitem__)]


def activation_bytes(model: Untyped, longest: int) -> int:
    """Predict the memory of the activations of a row in plain torch."""
    config = model.config.get_text_config()
    hidden = int(getattr(config, "hidden_size", 0) or 0)
    layers = int(getattr(config, "num_hidden_layers", 0) or 0)
    heads = int(getattr(config, "num_attention_heads", 0) or 0)
    vocabulary = int(getattr(config, "vocab_size", 0) or 0)
    return 4 * longest * (layers * (40 * hidden + 2 * heads * longest) + 4 * vocabulary)
