"""Part `kernels`: times of our operations on the tensor shapes of real models.

Part `correctness` checks the results of the operations. The times are for forward and backward in
bf16, with our kernels, eager torch and Liger. `ratio` is our kernel's rate divided by the ceiling
measured in the same process. The ceiling is the copy bandwidth for memory traffic and the rate of
torch.mm for matrix products.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from tunesmith_kernels.dispatch import interpreted

from ..kernel_operations import (
    OPERATIONS,
    SHAPES,
    Shape,
    outputs_and_gradients,
    upstream_of,
)
from .attention_paths import attention_paths
from .cudnn_rows import cudnn_rows
from .head_rows import head_rows
from .order import REAL_SHAPES, TINY_SHAPES
from .serving import Case, serve
from .timing import (
    Product,
    copy_bytes_per_second,
    median_seconds,
    operations,
    product_seconds,
)
from .work import WORK

BEYOND: dict[str, Callable[[Shape, torch.device], dict[str, Any]]] = {
    "head_rows": head_rows,
    "attention_paths": attention_paths,
    "cudnn_rows": cudnn_rows,
}
"""Cases that are not in OPERATIONS: an in-place kernel, and comparisons of several
implementations."""


def ceilings(device: torch.device) -> dict[str, Any]:  # Any: JSON
    return {
        "copy_gb_per_s": round(copy_bytes_per_second(device) / 1e9, 1),
        "bf16_product": list(_square(device)),
        "bf16_tflop_per_s": round(square_rate(device), 2),
    }


def square_rate(device: torch.device) -> float:
    """Measure the rate of torch.mm on large square matrices in bf16, in TFLOP/s."""
    square = [_square(device)]
    return operations(square) / product_seconds(square, device, torch.bfloat16) / 1e12


def _square(device: torch.device) -> Product:
    side = 8192 if device.type == "cuda" else 64
    return side, side, side


def run(operation: str, shape: Shape, device: torch.device) -> dict[str, Any]:  # Any: JSON
    """Time one operation."""
    problem = OPERATIONS[operation](shape, device, torch.bfloat16)
    functions = {"ours": problem.ours, "eager": problem.eager, **problem.others}
    if problem.liger is not None:
        functions["liger"] = problem.liger
    upstream = upstream_of(problem)
    seconds = median_seconds(
        {
            name: partial(outputs_and_gradients, function, problem.leaves, upstream)
            for name, function in functions.items()
        },
        device,
        repeats=30 if device.type == "cuda" else 1,
    )
    return rates(operation, shape, device, seconds)


def rates(
    operation: str, shape: Shape, device: torch.device, seconds: dict[str, float]
) -> dict[str, Any]:  # Any: JSON
    """Convert times to rates. `ratio` is our rate divided by the ceiling (copy bandwidth or rate of
    torch.mm)."""
    work = WORK[operation](shape)
    figures: dict[str, Any] = {
        "ms": {name: round(elapsed * 1e3, 4) for name, elapsed in seconds.items()},
        "speed_to_eager": round(seconds["eager"] / seconds["ours"], 2),
        "formula": work.words,
        "barred": work.barred,
    }
    moved = work.elements * torch.bfloat16.itemsize
    copying = moved / copy_bytes_per_second(device)
    if work.attention:
        rate = work.attention / seconds["ours"] / 1e12
        ceiling = square_rate(device)
        return figures | {
            "bound": "attention",
            "tflop_per_s": round(rate, 2),
            "ratio": round(rate / ceiling, 3),
        }
    if work.products:
        multiplying = product_seconds(work.products, device, torch.bfloat16)
        count = operations(work.products)
        return figures | {
            "bound": "products",
            "tflop_per_s": round(count / seconds["ours"] / 1e12, 2),
            "blas_tflop_per_s": round(count / multiplying / 1e12, 2),
            "least_ms": {"products": round(multiplying * 1e3, 4), "bytes": round(copying * 1e3, 4)},
            "ratio": round((multiplying + copying) / seconds["ours"], 3),
        }
    return figures | {
        "bound": "bandwidth",
        "bytes": moved,
        "gb_per_s": round(moved / seconds["ours"] / 1e9, 1),
        "ratio": round(copying / seconds["ours"], 3),
    }


def cases(device: torch.device) -> dict[str, Case]:
    by_name: dict[str, Case] = {"ceilings": partial(ceilings, device)}
    for shape in REAL_SHAPES if device.type == "cuda" else TINY_SHAPES:
        for name in OPERATIONS:
            by_name[f"{shape}/{name}"] = partial(run, name, SHAPES[shape], device)
        for name, function in BEYOND.items():
            by_name[f"{shape}/{name}"] = partial(function, SHAPES[shape], device)
    return by_name


def main() -> int:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    on_gpu = torch.cuda.is_available()
    with nullcontext() if on_gpu else interpreted():
        return serve(cases(torch.device("cuda" if on_gpu else "cpu")))


if __name__ == "__main__":
    sys.exit(main())
