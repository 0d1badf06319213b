"""Trial pass: measure the peak memory of a forward and backward pass, and the bytes of each layer.

The trial pass does not change the run: it removes gradients, restores the random state and runs no
optimiser step.

On a GPU, the trial pass reads the allocator's statistics. On a CPU, torch's profiler records every
tensor allocation, even inside operations. The profiler does not record the operations, because
recording them would take much longer. On a CPU, resident memory is larger than the tensors, because
glibc keeps freed blocks and memory becomes fragmented. On a CPU, a second forward and backward
pass, without the profiler, measures the peak of resident memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C._autograd import _enable_record_function
from torch.autograd.profiler import profile

from .free_memory import HostPeak

Untyped = Any  # Any: transformers is not typed


@dataclass
class Peak:
    """Peak of tensor memory minus tensor memory at the start, in bytes; 0 until the measurement
    ends."""

    peak: int = 0


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Memory growth in the trial pass, in bytes."""

    peak: int
    kept: tuple[int, ...] = field(default_factory=tuple)
    """Bytes that each layer saves for backward, including its input. A recomputed layer saves only
    its input. An offloaded layer saves nothing on the device."""
    allocator: int = 0
    """Resident bytes minus the tensors' bytes at the peak; 0 on a GPU or if not available."""


@contextmanager
def measure_peak(device: torch.device, *, collect: bool = True) -> Iterator[Peak]:
    """Measure the peak of tensor bytes within this block.

    `collect`: True to collect garbage first. Garbage that is freed within the block would make the
    measured peak too low."""
    if collect:
        gc.collect()
    held = Peak()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield held
        torch.cuda.synchronize(device)
        held.peak = torch.cuda.max_memory_allocated(device) - before
        return
    # `with` closes the profiler even if the block raises.
    with profile(use_kineto=True, profile_memory=True) as profiler, _without_operations():
        yield held
    results: Untyped = profiler.kineto_results
    moves = [(e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]"]
    now = 0
    for _, size in sorted(moves, key=lambda move: move[0]):
        now += size
        held.peak = max(held.peak, now)


@contextmanager
def _without_operations() -> Iterator[None]:
    """Make the profiler record no operations, only memory."""
    _enable_record_function(False)
    try:
        yield
    finally:
        _enable_record_function(True)


@contextmanager
def kept_by_layer(layers: Sequence[torch.nn.Module], resident: set[int]) -> Iterator[list[int]]:
    """Count the bytes that each layer saves for backward; count a shared storage once.

    `resident`: addresses of the weights' storages, which are not counted."""
    kept = [0] * len(layers)
    seen = set(resident)
    current: list[int] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if current and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            kept[current[-1]] += storage.nbytes()
        return x.detach()  # otherwise an output x would keep its graph in memory

    def entering(number: int) -> Callable[..., None]:
        return lambda *_: current.append(number)

    def leaving(*_: Untyped) -> None:
        current.pop()

    handles = []
    checkpointed: list[tuple[Untyped, Untyped]] = []
    layer: Untyped
    for number, layer in enumerate(layers):
        # Before transformers 5.23, the hooks of a recomputed layer run inside this function.
        if (run := vars(layer).get("_gradient_checkpointing_func")) is not None:
            checkpointed.append((layer, run))
            layer._gradient_checkpointing_func = _between(entering(number), run, leaving)
        handles.append(layer.register_forward_pre_hook(entering(number)))
        handles.append(layer.register_forward_hook(leaving, always_call=True))
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            yield kept
    finally:
        for handle in handles:
            handle.remove()
        for layer, run in checkpointed:
            layer._gradient_checkpointing_func = run


def _between(enter: Untyped, run: Untyped, leave: Untyped) -> Untyped:
    def run_between(*args: Untyped, **kwargs: Untyped) -> Untyped:
        enter()
        try:
            return run(*args, **kwargs)
        finally:
            leave()

    return run_between


def run_probe(
    model: torch.nn.Module, layers: Sequence[torch.nn.Module], loss_of: Callable[[], torch.Tensor]
) -> Probe:
    """Run forward and backward once and measure the memory of both.

    `loss_of` computes the loss of a batch on `model`. All gradients must be None before the call,
    and are None after the call. Errors such as out of memory propagate after the state is
    restored."""
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
