"""The kernels' benchmark compares like with like, and says what it cannot compare."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks import kernel_problem, kernels
from benchmarks.kernel_operations import (
    OPERATIONS,
    SHAPES,
    Problem,
    Tensors,
    outputs_and_gradients,
    upstream_of,
)

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")

every_operation = pytest.mark.parametrize("operation", OPERATIONS)


def problem_of(operation: str, dtype: torch.dtype = torch.float32) -> Problem:
    torch.manual_seed(0)
    return OPERATIONS[operation](SHAPES["tiny"], CPU, dtype)


def relative_errors(results: Tensors, truths: Tensors) -> list[float]:
    assert [one.shape for one in results] == [one.shape for one in truths]
    return [
        float(
            (one.detach().double() - truth.detach().double()).norm()
            / truth.detach().double().norm()
        )
        for one, truth in zip(results, truths, strict=True)
    ]


@every_operation
def test_every_side_gives_the_outputs_and_gradients_of_eager_in_float64(operation: str) -> None:
    problem = problem_of(operation)
    upstream = upstream_of(problem)
    wide = tuple(one.detach().double().requires_grad_() for one in problem.leaves)
    truths = outputs_and_gradients(problem.eager, wide, tuple(one.double() for one in upstream))
    before = [one.detach().clone() for one in problem.leaves]
    for function in (problem.ours, problem.eager, *problem.others.values()):
        found = outputs_and_gradients(function, problem.leaves, upstream)
        assert max(relative_errors(found, truths)) < 1e-5
    assert all(torch.equal(one, two) for one, two in zip(problem.leaves, before, strict=True))


@every_operation
def test_bf16_is_no_further_from_fp32_than_eager(operation: str) -> None:
    """Adapters stay in fp32, as PEFT keeps them: a gradient's own type is its leaf's."""
    problem = problem_of(operation, torch.bfloat16)
    upstream = upstream_of(problem)
    wide = tuple(one.detach().float().requires_grad_() for one in problem.leaves)
    truths = outputs_and_gradients(problem.eager, wide, tuple(one.float() for one in upstream))
    ours, eager = (
        relative_errors(outputs_and_gradients(side, problem.leaves, upstream), truths)
        for side in (problem.ours, problem.eager)
    )
    assert all(one <= 1.5 * two + 2**-9 for one, two in zip(ours, eager, strict=True))


@every_operation
def test_a_row_has_each_side_or_the_reason_why_not(operation: str) -> None:
    row = kernels.measure(operation, SHAPES["tiny"], CPU, torch.float32, repeats=1, compiled=False)
    expected = {"ours", "eager", "liger", *problem_of(operation).others}
    assert row.keys() == expected
    for side, figures in row.items():
        if side == "liger":
            assert figures["ms"] is figures["gb_per_s"] is figures["speed_to_eager"] is None
            continue
        assert figures["ms"] > 0
    reason = row["liger"]["reason"]
    has_twin = operation not in {"attention", "lora_qkv", "lora_down"}
    assert ("needs a GPU" in reason) if has_twin else reason.startswith("Liger has no ")


def test_liger_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert kernel_problem.why_no_liger() == "liger_kernel is not installed"
    assert kernel_problem.liger_function("LigerRMSNormFunction") is None


@pytest.mark.parametrize("shape", SHAPES)
def test_the_texts_of_a_shape_fill_its_rows(shape: str) -> None:
    lengths = SHAPES[shape].lengths()
    assert sum(lengths) == SHAPES[shape].rows
    assert len(lengths) > 1
    assert min(lengths) > 0


def test_one_json_line_is_printed() -> None:
    command = [sys.executable, "-m", "benchmarks.kernels", "--shape", "tiny", "--repeats", "1"]
    command += ["--no-compile", "--only", "log_prob", "attention", "--dtype", "bfloat16"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    printed = json.loads(line)
    assert printed["results"]["attention"]["sdpa_block_mask"]["ms"] > 0
    assert (printed["shape"], printed["dtype"]) == ("tiny", "bfloat16")
