"""Set the activation mode of decoder layers: keep, recompute, or recompute with offloaded input.

In transformers, recomputation is enabled for a whole model: each layer reads a flag and calls a
checkpoint function. This module sets the gradient-checkpointing flag and the checkpoint function of
each layer separately, and counts recomputations and offloads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from tunesmith_schema import LayerMemory

from .choose import MIN_OFFLOADED_TOKENS
from .estimate import Mode
from .offload import InputOffload

Untyped = Any  # Any: transformers is not typed


@dataclass
class LayerCounts:
    """Number of recomputations and offloads of one layer since its mode was set."""

    mode: Mode
    forwards: int = 0
    """Number of forward passes that need a recomputation; 0 for a layer that keeps its
    activations."""
    recomputes: int = 0
    offloads: int = 0
    """Number of inputs copied to the host; short inputs stay on the device."""


class LayerModes:
    """Sets the mode of each layer of a model, and counts its recomputations and offloads."""

    def __init__(self, model: Untyped, *, min_offloaded_tokens: int = MIN_OFFLOADED_TOKENS) -> None:
        """`min_offloaded_tokens`: inputs with fewer tokens stay on the device."""
        self.layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
        self.counts: list[LayerCounts] = []
        self._offload = InputOffload(min_offloaded_tokens)
        self.set(["keep"] * len(self.layers))

    def set(self, modes: Sequence[Mode]) -> None:
        """Set the mode of each layer, and reset the counts. `modes` starts with the first layer."""
        self.counts = [LayerCounts(mode) for mode in modes]
        layer: Untyped
        for layer, counts in zip(self.layers, self.counts, strict=True):
            layer.gradient_checkpointing = counts.mode != "keep"
            layer._gradient_checkpointing_func = _Recompute(
                counts, self._offload if counts.mode == "offload" else None
            )

    def undo(self) -> None:
        """Remove the checkpointing flag and the checkpoint function from every layer."""
        layer: Untyped
        for layer in self.layers:
            layer.__dict__.pop("gradient_checkpointing", None)
            layer.__dict__.pop("_gradient_checkpointing_func", None)
        self.counts = []

    def deviations(self) -> list[str]:
        """Return a message for each layer that did not follow its mode."""
        deviations = []
        for number, counts in enumerate(self.counts):
            layer: Untyped = self.layers[number]
            on = bool(layer.gradient_checkpointing)
            if on != (counts.mode != "keep"):
                deviations.append(
                    f"layer {number} has mode {counts.mode}, but its gradient_checkpointing "
                    f"flag was set to {on}"
                )
            elif counts.recomputes != counts.forwards:
                deviations.append(
                    f"layer {number} recomputed {counts.recomputes} of {counts.forwards} "
                    "forward passes"
                )
        return deviations


Counter = Callable[[], list[int]]
"""Function that returns one count per layer, layer 0 first."""


@dataclass(frozen=True, kw_only=True)
class LayerCounters:
    """Planned mode of each layer, and functions that count its recomputations and offloads."""

    planned: list[Literal["keep", "recompute", "offload"]] | None = None
    recomputes: Counter | None = None
    offloads: Counter | None = None

    def read(self) -> LayerMemory:
        return LayerMemory(
            planned=self.planned,
            recomputes=self.recomputes and self.recomputes(),
            offloads=self.offloads and self.offloads(),
        )


@contextmanager
def no_layer_recomputes(model: Untyped) -> Iterator[None]:
    """Turn recomputation off within this block, then restore each layer's flag.

    TRL's `disable_gradient_checkpointing` does not restore the flags: it turns recomputation on for
    every layer, and adds a hook to the embedding."""
    layers: list[Untyped]
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    recompute = [layer for layer in layers if layer.gradient_checkpointing]
    for layer in recompute:
        layer.gradient_checkpointing = False
    try:
        yield
    finally:
        for layer in recompute:
            layer.gradient_checkpointing = True


class _Recompute:
    def __init__(self, counts: LayerCounts, offload: InputOffload | None) -> None:
        self._counts = counts
        self._offload = offload

    def __call__(self, run: Callable[..., Untyped], *args: Untyped, **kwargs: Untyped) -> Untyped:
        if not torch.is_grad_enabled():
            return run(*args, **kwargs)
        self._counts.forwards += 1
        begun = False

        def counted(*args: Untyped, **kwargs: Untyped) -> Untyped:
            nonlocal begun
            self._counts.recomputes += begun
            begun = True
            return run(*args, **kwargs)

        offload = nullcontext() if self._offload is None else self._offload.inputs(self._counts)
        # Non-reentrant checkpoints also work if the input needs no gradient.
        with offload:
            return checkpoint(counted, *args, use_reentrant=False, **kwargs)
