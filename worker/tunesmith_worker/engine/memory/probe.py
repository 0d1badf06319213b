"""One forward and backward of a real batch, measured: tensor bytes at the peak, and what each layer
keeps. Leaves no trace: no gradient, no random number drawn, no optimiser step.

On a GPU its allocator counts. On a CPU torch's profiler does, which sees every allocation of a
tensor, those inside of operations included, and costs about a tenth of the pass. A second pass on
a CPU, without the profiler, shows how far resident memory exceeds them: glibc keeps what is freed,
and a tensor of another size that takes some of it breaks it up.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.profiler import profile

from .free_memory import HostPeak

Untyped = Any  # Any: transformers is not typed


@dataclass
class Peak:
    """Bytes above what there was before; filled in when the measuring ends."""

    peak: int = 0


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Bytes of one pass, above what is resident."""

    peak: int
    kept: tuple[int, ...] = field(default_factory=tuple)
    """What each layer saved for backward, its input included; a recomputed one's input alone, an
    offloaded one's nothing."""
    allocator: int = 0
    """Resident beyond the tensors at the peak; 0 on a GPU, and where the kernel does not tell."""


@contextmanager
def measure_peak(device: torch.device) -> Iterator[Peak]:
    """Tensor bytes at the peak of what runs in here."""
    gc.collect()  # what it freed meanwhile would count as if what runs had given it back
    held = Peak()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield held
        torch.cuda.synchronize(device)
        held.peak = torch.cuda.max_memory_allocated(device) - before
        return
    # What runs may raise: the profiler must be closed then as well.
    with profile(use_kineto=True, profile_memory=True) as profiler:
        yield held
    results: Untyped = profiler.kineto_results
    moves = [(e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]"]
    now = 0
    for _, size in sorted(moves, key=lambda move: move[0]):
        now += size
        held.peak = max(held.peak, now)


@contextmanager
def kept_by_layer(layers: Sequence[torch.nn.Module], resident: set[int]) -> Iterator[list[int]]:
    """Bytes that each layer saves for backward, each storage counted where it is first saved.
    `resident`: addresses of storages that do not count (weights)."""
    kept = [0] * len(layers)
    seen = set(resident)
    current: list[int] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if current and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            kept[current[-1]] += storage.nbytes()
        return x.detach()  # x itself may be an output, which would then hold its own graph

    def entering(number: int) -> Callable[..., None]:
        return lambda *_: current.append(number)

    def leaving(*_: Untyped) -> None:
        current.pop()

    handles = []
    for number, layer in enumerate(layers):
        handles.append(layer.register_forward_pre_hook(entering(number)))
        handles.append(layer.register_forward_hook(leaving, always_call=True))
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            yield kept
    finally:
        for handle in handles:
            handle.remove()


def run_probe(
    model: torch.nn.Module, layers: Sequence[torch.nn.Module], loss_of: Callable[[], torch.Tensor]
) -> Probe:
    """`loss_of` computes the loss of the batch on `model`, whose gradients are None before and
    after. Raises what the pass raises, out of memory above all, and leaves no trace then either."""
    device = next(model.parameters()).device
    tensors = (*model.parameters(), *model.buffers())
    resident = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    was_training, allocator = model.training, 0
    model.train()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            with measure_peak(device) as held, kept_by_layer(layers, resident) as kept:
                loss_of().backward()
            if device.type == "cpu":
                model.zero_grad(set_to_none=True)
                host = HostPeak()
                loss_of().backward()
                allocator = max(0, (host.growth() or held.peak) - held.peak)
    finally:
        model.train(was_training)
        model.zero_grad(set_to_none=True)
    return Probe(peak=held.peak, kept=tuple(kept), allocator=allocator)
