"""Which decoder layers keep their activations, which recompute them in backward, and which of those
have their input in the host's memory meanwhile: layer by layer, and counted.

transformers turns recomputation on for a whole model; each of its layers asks a flag and calls a
function of its own, though, and those are what is set here. Works for its own layers and for ours.
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

from .estimate import Mode
from .offload import MIN_OFFLOADED_TOKENS, InputOffload

Untyped = Any  # Any: transformers is not typed


@dataclass
class LayerCounts:
    """What one layer has done since it was set up."""

    mode: Mode
    forwards: int = 0
    """Under this mode, in training; kept layers are not counted."""
    recomputes: int = 0
    offloads: int = 0
    """Inputs that went to the host; short ones stay."""


class LayerModes:
    """Sets and counts the modes of one model's layers."""

    def __init__(self, model: Untyped, *, min_offloaded_tokens: int = MIN_OFFLOADED_TOKENS) -> None:
        """`min_offloaded_tokens`: tokens below which an input stays on the device."""
        self.layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
        self.counts: list[LayerCounts] = []
        self._offload = InputOffload(min_offloaded_tokens)
        self.set(["keep"] * len(self.layers))

    def set(self, modes: Sequence[Mode]) -> None:
        """One mode for each layer, in the order of the forward pass."""
        self.counts = [LayerCounts(mode) for mode in modes]
        layer: Untyped
        for layer, counts in zip(self.layers, self.counts, strict=True):
            layer.gradient_checkpointing = counts.mode != "keep"
            layer._gradient_checkpointing_func = _Recompute(
                counts, self._offload if counts.mode == "offload" else None
            )

    def undo(self) -> None:
        layer: Untyped
        for layer in self.layers:
            layer.__dict__.pop("gradient_checkpointing", None)
            layer.__dict__.pop("_gradient_checkpointing_func", None)
        self.counts = []

    def deviations(self) -> list[str]:
        """Layers that have not done what their mode says; empty when all have."""
        found = []
        for number, counts in enumerate(self.counts):
            layer: Untyped = self.layers[number]
            on = bool(layer.gradient_checkpointing)
            if on != (counts.mode != "keep"):
                found.append(f"layer {number} was to {counts.mode}, but somebody set its flag {on}")
            elif counts.recomputes != counts.forwards:
                found.append(
                    f"layer {number} recomputed {counts.recomputes} of {counts.forwards} forwards"
                )
        return found


Counter = Callable[[], list[int]]
"""A count for each layer, layer 0 first."""


@dataclass(frozen=True, kw_only=True)
class LayerCounters:
    """What the plan says of each layer, and who counts what became of it."""

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
    """For TRL's code without gradients: where it finds a layer that recomputes, it turns that off
    for the whole model and then on for all of it, with a hook on the embedding, whatever each layer
    was set to."""
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
    """What a layer calls in place of its forward."""

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
        # Without reentry: a frozen embedding's output needs no gradient, and random numbers are
        # those of the forward.
        with offload:
            return checkpoint(counted, *args, use_reentrant=False, **kwargs)
