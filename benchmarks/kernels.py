"""Compare the time of each kernel, forward and backward, with eager torch, torch.compile and Liger.

    OMP_NUM_THREADS=1 python -m benchmarks.kernels [--shape llama-8b] [--dtype bfloat16]

All implementations run alternately in one process. The result of an implementation is its shortest
time of --repeats rounds. On a CPU, times are CPU-seconds; on a GPU, they are seconds between two
CUDA events. `gb_per_s` is the minimum traffic divided by the time. Liger needs a GPU; if Liger
cannot run, its results are null and `reason` explains why. Prints one JSON line, which also
contains the environment variables that configure malloc.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .kernel_operations import (
    OPERATIONS,
    SHAPES,
    Shape,
    outputs_and_gradients,
    upstream_of,
)
from .kernel_problem import why_no_liger
from .service_parts.machine import cpu_model

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ALLOCATOR = ("MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Return the CPU-seconds of one call on a CPU, or the seconds of one call on a GPU."""
    if device.type == "cpu":
        start = time.process_time()
        run()
        return time.process_time() - start
    torch.cuda.synchronize(device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def best_seconds(
    sides: dict[str, Callable[[], object]], device: torch.device, repeats: int
) -> dict[str, float]:
    """Measure the shortest time of each implementation in `sides`.

    The implementations run in turn, so other load on the machine affects all of them. The first
    round is not counted, because it warms up and compiles.
    """
    best = dict.fromkeys(sides, float("inf"))
    for turn in range(repeats + 1):
        for name, run in sides.items():
            elapsed = seconds(run, device)
            if turn:
                best[name] = min(best[name], elapsed)
    return best


def measure(
    operation: str,
    shape: Shape,
    device: torch.device,
    dtype: torch.dtype,
    *,
    repeats: int,
    compiled: bool,
) -> dict[str, Any]:  # Any: JSON
    """Measure milliseconds, GB/s and speed relative to eager torch for each implementation."""
    problem = OPERATIONS[operation](shape, device, dtype)
    upstream = upstream_of(problem)
    functions = {"ours": problem.ours, "eager": problem.eager, **problem.others}
    if compiled:
        functions["compile"] = torch.compile(problem.eager, dynamic=True)
    if problem.liger is not None:
        functions["liger"] = problem.liger
    sides: dict[str, Callable[[], object]] = {
        name: partial(outputs_and_gradients, function, problem.leaves, upstream)
        for name, function in functions.items()
    }
    best = best_seconds(sides, device, repeats)
    figures: dict[str, Any] = {
        name: {
            "ms": round(elapsed * 1e3, 4),
            "gb_per_s": round(problem.least_bytes / elapsed / 1e9, 2),
            "speed_to_eager": round(best["eager"] / elapsed, 2),
        }
        for name, elapsed in best.items()
    }
    if problem.liger is None:
        nothing = {"ms": None, "gb_per_s": None, "speed_to_eager": None}
        figures["liger"] = nothing | {"reason": problem.no_liger or why_no_liger()}
    return figures


def facts(device: torch.device) -> dict[str, Any]:  # Any: JSON
    """Return the device, the versions of the packages, and the variables that configure malloc."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "processor": cpu_model(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "allocator": {name: os.environ[name] for name in ALLOCATOR if name in os.environ},
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--shape", choices=SHAPES)
    arguments.add_argument("--dtype", choices=DTYPES, default="float32")
    arguments.add_argument("--only", choices=OPERATIONS, nargs="+", default=list(OPERATIONS))
    arguments.add_argument("--repeats", type=int, default=20)
    arguments.add_argument("--no-compile", action="store_true")
    options = arguments.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = options.shape or ("llama-8b" if device.type == "cuda" else "llama-12m")
    torch.manual_seed(0)
    results = {
        operation: measure(
            operation,
            SHAPES[name],
            device,
            DTYPES[options.dtype],
            repeats=options.repeats,
            compiled=not options.no_compile,
        )
        for operation in options.only
    }
    print(json.dumps({**facts(device), "shape": name, "dtype": options.dtype, "results": results}))


if __name__ == "__main__":
    main()
