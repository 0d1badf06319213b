"""Part `correctness`: accuracy of our kernels on the tensor shapes of real models, and GPU tests.

The benchmark part has these cases.

`SHAPE/OPERATION`: Errors of outputs and gradients. In fp32, a kernel's relative RMS error against
    eager torch in float64 must be at most 1e-5. In bf16, a kernel's error against eager torch in
    fp32 must be at most 1.5 times the error of eager bf16.
`gpu_tests`: Numbers of passed, failed and skipped tests with the marker `gpu`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

from tunesmith_kernels.dispatch import interpreted

from ..kernel_operations import (
    OPERATIONS,
    SHAPES,
    Problem,
    Shape,
    Tensors,
    outputs_and_gradients,
    upstream_of,
)
from ..worst import as_error
from .children import ROOT
from .head_rows import check_head_rows
from .order import REAL_SHAPES, TINY_SHAPES
from .serving import Case, serve

Result = dict[str, Any]  # Any: JSON

FP32_LIMIT = 1e-5
BF16_FACTOR = 1.5
INTERPRETED_BF16 = 2**-8
"""Extra bf16 error allowed in Triton's interpreter. The interpreter truncates numbers to bf16, but
a GPU rounds numbers to the nearest bf16."""
GPU_TESTS = ("tests/kernels", "tests/worker/engine", "tests/worker/rundir/test_clock.py")
TINY_TESTS = ("tests/kernels/test_rope.py",)
MOST_NAMES = 20


def check(operation: str, shape: Shape, device: torch.device) -> Result:
    """Compute the errors of an operation in fp32 and in bf16. Return the largest fp32 error of our
    kernel, the bf16 errors of our kernel and of eager torch for each output and gradient, and
    `passed`. `passed` is False if an error of our kernel is NaN or above its limit."""
    fp32 = [ours for ours, _ in errors(operation, shape, device, torch.float32, torch.float64)]
    bf16 = errors(operation, shape, device, torch.bfloat16, torch.float32)
    slack = INTERPRETED_BF16 if device.type == "cpu" else 0.0
    return {
        "fp32_error": max(map(as_error, fp32)),
        "bf16_error": [ours for ours, _ in bf16],
        "bf16_error_eager": [eager for _, eager in bf16],
        "passed": all(ours <= FP32_LIMIT for ours in fp32)
        and all(ours <= BF16_FACTOR * eager + slack for ours, eager in bf16),
    }


def errors(
    operation: str, shape: Shape, device: torch.device, dtype: torch.dtype, truth: torch.dtype
) -> list[tuple[float, float]]:
    """Return our kernel's error and eager torch's error for each output and gradient. The exact
    values come from eager torch in the dtype `truth`."""
    problem = OPERATIONS[operation](shape, device, dtype)
    upstream = upstream_of(problem)
    truths = _truths(problem, upstream, truth)

    def of(results: Tensors) -> list[float]:
        pairs = zip(results, truths, strict=True)
        return [relative_error(actual, exact.detach()) for actual, exact in pairs]

    eager = of(outputs_and_gradients(problem.eager, problem.leaves, upstream))
    ours = of(outputs_and_gradients(problem.ours, problem.leaves, upstream))
    return list(zip(ours, eager, strict=True))


def _truths(problem: Problem, upstream: Tensors, dtype: torch.dtype) -> Tensors:
    leaves, wide_upstream = (
        tuple(
            t.detach().to(dtype).requires_grad_(t.requires_grad) if t.is_floating_point() else t
            for t in tensors
        )
        for tensors in (problem.leaves, upstream)
    )
    return outputs_and_gradients(problem.eager, leaves, wide_upstream)


def relative_error(actual: torch.Tensor, truth: torch.Tensor) -> float:
    """Return the RMS of `actual - truth` divided by the RMS of `truth`, in the dtype of `truth`."""
    return float((actual.detach().to(truth.dtype) - truth).norm() / truth.norm())


def gpu_tests(device: torch.device) -> Result:
    """Run the tests that need a GPU. On a CPU, only a few of these tests are collected, and pytest
    skips them."""
    if find_spec("pytest") is None:
        return {"refused": "pytest is not installed"}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
        # Warnings are errors in our own runs; other versions of packages may have other warnings.
        command += ["-W", "default", f"--junitxml={report}"]
        command += GPU_TESTS if device.type == "cuda" else TINY_TESTS
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        sys.stderr.write(run.stdout + run.stderr)
        if not report.exists():
            return {"refused": f"pytest ended with status {run.returncode}", "passed": False}
        return counts(report)


def counts(report: Path) -> Result:
    """Read pytest's XML report. `passed` is False if a test failed or if the report has no
    tests."""
    tests = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [
        f"{test.get('classname')}::{test.get('name')}"
        for test in tests
        if test.find("failure") is not None or test.find("error") is not None
    ]
    return {
        "tests": len(tests),
        "failed": len(failed),
        "skipped": sum(test.find("skipped") is not None for test in tests),
        "failures": failed[:MOST_NAMES],
        "passed": bool(tests) and not failed,
    }


def cases(device: torch.device) -> dict[str, Case]:
    by_name: dict[str, Case] = {}
    for shape in REAL_SHAPES if device.type == "cuda" else TINY_SHAPES:
        for name in OPERATIONS:
            by_name[f"{shape}/{name}"] = partial(check, name, SHAPES[shape], device)
        by_name[f"{shape}/head_rows"] = partial(check_head_rows, device)
    by_name["gpu_tests"] = partial(gpu_tests, device)
    return by_name


def main() -> int:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    on_gpu = torch.cuda.is_available()
    with nullcontext() if on_gpu else interpreted():
        return serve(cases(torch.device("cuda" if on_gpu else "cpu")))


if __name__ == "__main__":
    sys.exit(main())
