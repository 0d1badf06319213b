"""On a GPU: checks each Triton kernel on real shapes, then times it; leaves one JSON file.

    PYTHONPATH=kernels python -m benchmarks.gpu       # needs torch with CUDA, nothing else
    TRITON_INTERPRET=1 python -m benchmarks.gpu       # without a GPU: the checks alone, tiny shapes

Two checks an operation, of outputs and gradients: fp32 within a relative RMS of 1e-5 of eager torch
in float64, and the error of bf16 against eager torch in fp32 at most 1.5 times eager bf16's. Prints
one JSON line, writes a GPU's to $OUT or benchmarks/results/ as kernels-DEVICE.json, and exits 1
when a check failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from tunesmith_kernels.dispatch import interpreted

from .kernel_operations import (
    OPERATIONS,
    SHAPES,
    Shape,
    Tensors,
    outputs_and_gradients,
    upstream_of,
)
from .kernels import DTYPES, facts, measure

FP32_LIMIT = 1e-5
BF16_FACTOR = 1.5
# Triton's interpreter truncates to bf16 where hardware rounds to the nearest.
INTERPRETED_BF16 = 2**-8


def relative_error(actual: torch.Tensor, truth: torch.Tensor) -> float:
    """RMS of the error over RMS of the truth, in the truth's dtype."""
    return float((actual.detach().to(truth.dtype) - truth).norm() / truth.norm())


def errors(
    operation: str, shape: Shape, device: torch.device, dtype: torch.dtype, truth: torch.dtype
) -> list[tuple[float, float]]:
    """(ours, eager's) against eager torch in the dtype `truth`, for each output and gradient."""
    problem = OPERATIONS[operation](shape, device, dtype)
    upstream = upstream_of(problem)
    wide_leaves, wide_upstream = (
        tuple(t.detach().to(truth).requires_grad_(t.requires_grad) for t in tensors)
        for tensors in (problem.leaves, upstream)
    )
    truths = outputs_and_gradients(problem.eager, wide_leaves, wide_upstream)

    def of(results: Tensors) -> list[float]:
        return [
            relative_error(actual, exact.detach())
            for actual, exact in zip(results, truths, strict=True)
        ]

    eager = of(outputs_and_gradients(problem.eager, problem.leaves, upstream))
    ours = of(outputs_and_gradients(problem.ours, problem.leaves, upstream))
    return list(zip(ours, eager, strict=True))


def check(operation: str, shape: Shape, device: torch.device) -> dict[str, Any]:  # Any: JSON
    """The worst figures of both checks, and whether they passed; NaN passes nothing."""
    fp32 = [ours for ours, _ in errors(operation, shape, device, torch.float32, torch.float64)]
    bf16 = errors(operation, shape, device, torch.bfloat16, torch.float32)
    slack = INTERPRETED_BF16 if device.type == "cpu" else 0.0
    return {
        "fp32_error": max(fp32),
        "bf16_error": [ours for ours, _ in bf16],
        "bf16_error_eager": [eager for _, eager in bf16],
        "passed": all(ours <= FP32_LIMIT for ours in fp32)
        and all(ours <= BF16_FACTOR * eager + slack for ours, eager in bf16),
    }


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--shape", choices=SHAPES)
    arguments.add_argument("--repeats", type=int, default=50)
    given = arguments.parse_args()
    torch.manual_seed(0)
    report: dict[str, Any]
    if torch.cuda.is_available():
        device, shape = torch.device("cuda"), SHAPES[given.shape or "llama-8b"]
        report = facts(device) | {"shape": given.shape or "llama-8b"}
        report["checks"] = {name: check(name, shape, device) for name in OPERATIONS}
        report["speed"] = {
            dtype: {
                name: measure(
                    name, shape, device, DTYPES[dtype], repeats=given.repeats, compiled=True
                )
                for name in OPERATIONS
            }
            for dtype in DTYPES
        }
    else:
        device, shape = torch.device("cpu"), SHAPES[given.shape or "tiny"]
        report = facts(device) | {"shape": given.shape or "tiny", "interpreted": True}
        with interpreted():
            report["checks"] = {name: check(name, shape, device) for name in OPERATIONS}
    line = json.dumps(report)
    print(line)
    if device.type == "cuda":
        folder = Path(os.environ.get("OUT") or Path(__file__).parent / "results")
        folder.mkdir(parents=True, exist_ok=True)
        name = report["device"].lower().replace(" ", "-")
        (folder / f"kernels-{name}.json").write_text(line + "\n")
    return 0 if all(result["passed"] for result in report["checks"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
