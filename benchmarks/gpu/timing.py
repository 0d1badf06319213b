"""Time of operations on a device, and the device's rates of copies and matrix products.

On a GPU, each repeat first overwrites the L2 cache. Then other work keeps the GPU busy while Python
enqueues the operation. Without this work, the time of a small operation would include the time that
Python needs. Two CUDA events around the operation measure its time; the result is the median over
all repeats. On a CPU, the time is in CPU-seconds and serves only to test this code.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch

Run = Callable[[], object]
Product = tuple[int, int, int]
"""Sizes m, k, n of a matrix product [m, k] @ [k, n]."""

_FLUSH_BYTES = 256 << 20  # several times the largest L2 cache
_BUSY_CYCLES = 3_000_000  # takes about 1.5 ms, longer than the host needs to enqueue any operation
_COPY_BYTES = (64 << 20, 256 << 20, 1 << 30)


def median_seconds(
    sides: Mapping[str, Run], device: torch.device, repeats: int
) -> dict[str, float]:
    """Measure the median time of each implementation in `sides`.

    The implementations run in turn, so changes of the clock rate affect all of them. Before the
    measurement, each implementation runs twice, to warm up and to compile.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {n: [] for n in sides}
    for turn in range(repeats + 2):
        for name, run in sides.items():
            if device.type == "cpu":
                begun = time.process_time()
                run()
                times[name] += [time.process_time() - begun] if turn >= 2 else []
                continue
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            _flush_buffer().zero_()
            torch.cuda._sleep(_BUSY_CYCLES)
            begin.record()
            run()
            end.record()
            events[name] += [(begin, end)] if turn >= 2 else []
    if device.type == "cuda":
        torch.cuda.synchronize()
        for name, pairs in events.items():
            times[name] = [begin.elapsed_time(end) / 1e3 for begin, end in pairs]
    return {name: statistics.median(values) for name, values in times.items()}


@cache
def _flush_buffer() -> torch.Tensor:
    return torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")


@cache
def copy_bytes_per_second(device: torch.device, repeats: int = 20) -> float:
    """Measure the copy bandwidth: bytes read plus bytes written, per second. On a GPU, return the
    best result of three buffer sizes of at least 64 MB."""
    sizes = _COPY_BYTES if device.type == "cuda" else (1 << 20,)
    rates = []
    for size in sizes:
        source = torch.empty(size, dtype=torch.uint8, device=device).random_(0, 255)
        target = torch.empty_like(source)
        seconds = median_seconds({"copy": _copying(source, target)}, device, repeats)["copy"]
        rates.append(2 * size / seconds)
    return max(rates)


def _copying(source: torch.Tensor, target: torch.Tensor) -> Run:
    return lambda: target.copy_(source)


def product_seconds(products: Sequence[Product], device: torch.device, dtype: torch.dtype) -> float:
    """Measure the total time of torch.mm on random matrices for all products."""
    return sum(_product_seconds(product, device, dtype) for product in products)


@cache
def _product_seconds(product: Product, device: torch.device, dtype: torch.dtype) -> float:
    a, b, out = _operands(product, device, dtype)
    runs = {"mm": lambda: torch.mm(a, b, out=out)}
    return median_seconds(runs, device, 10 if device.type == "cuda" else 1)["mm"]


def sustained_rate(
    products: Sequence[Product], device: torch.device, dtype: torch.dtype, seconds: float = 1.5
) -> float:
    """Measure the operations per second of torch.mm on `products`. The products run back to back
    for about `seconds`, as in training.

    The rate is lower than in `product_seconds`, because a device reduces its clock rate after some
    milliseconds of continuous work."""
    operands = {product: _operands(product, device, dtype) for product in set(products)}

    def multiply() -> None:
        for product in products:
            a, b, out = operands[product]
            torch.mm(a, b, out=out)

    first = _elapsed([multiply] * 2, device) / 2  # warms up
    times = max(1, round(seconds / first)) if device.type == "cuda" else 1
    return operations(products) * times / _elapsed([multiply] * times, device)


def _elapsed(runs: Sequence[Run], device: torch.device) -> float:
    if device.type == "cpu":
        begun = time.process_time()
        for run in runs:
            run()
        return time.process_time() - begun
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for run in runs:
        run()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _operands(
    product: Product, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    m, k, n = product
    a = torch.randn(m, k, device=device, dtype=dtype)
    b = torch.randn(k, n, device=device, dtype=dtype)
    return a, b, torch.empty(m, n, device=device, dtype=dtype)


def operations(products: Sequence[Product]) -> int:
    """Return the number of multiplications and additions in matrix products."""
    return sum(2 * m * k * n for m, k, n in products)
