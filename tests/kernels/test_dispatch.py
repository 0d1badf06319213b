"""Who takes which path, and that a machine without triton misses nothing on a CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tunesmith_kernels.dispatch import interpreted, uses_triton
from tunesmith_kernels.gated_activation import gated_forward
from tunesmith_kernels.rms_norm import NormKind, rms_norm_backward, rms_norm_forward
from tunesmith_kernels.rope import rope_


def test_cpu_tensors_take_triton_inside_interpreted_alone() -> None:
    x = torch.zeros(1)
    if torch.cuda.is_available():
        assert uses_triton(x.cuda())
    else:
        with interpreted():
            assert uses_triton(x)
    assert not uses_triton(x)


def test_interpreted_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"), interpreted():
        raise AssertionError("not reached")


def test_the_cpu_path_needs_no_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\n"
        "from tunesmith_kernels import gated_activation, rms_norm, rope\n"
        "x = torch.randn(2, 8, requires_grad=True)\n"
        "rms_norm.rms_norm(x, torch.ones(8), 1e-6).sum().backward()\n"
        "gated_activation.gated(x, 'silu').sum().backward()\n"
        "rope.rope_(torch.ones(2, 1, 8), torch.ones(2, 4), torch.ones(2, 4))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def sparse(path: Path, num_elements: int) -> torch.Tensor:
    """fp32 that takes disk space only where it is written."""
    return torch.from_file(str(path), shared=True, size=num_elements, dtype=torch.float32)


def test_rows_may_lie_more_than_2_31_elements_apart(tmp_path: Path) -> None:
    """Row offsets are int64 in every kernel: rows 2^30 elements apart, the third beyond 2^31."""
    if torch.cuda.is_available():
        pytest.skip(
            "the addresses are those of the interpreter; real shapes stand in the op's file"
        )
    stride = 2**30 + 8
    x = sparse(tmp_path / "x", 2 * stride + 8).as_strided((3, 8), (stride, 1))
    x.copy_(torch.randn(3, 8))
    near, weight, dy = x.clone(), torch.randn(8), torch.randn(3, 8)
    angle = torch.randn(3, 4)

    def results(x: torch.Tensor) -> list[torch.Tensor]:
        y, rstd = rms_norm_forward(x, weight, 1e-6, NormKind.LLAMA)
        dx, _ = rms_norm_backward(dy, x, weight, rstd, NormKind.LLAMA, weight_grad=False)
        out = gated_forward(x, "silu")
        return [y, dx, out, rope_(x[:, None], angle.cos(), angle.sin()).clone()]

    with interpreted():
        for far, close in zip(results(x), results(near), strict=True):
            assert torch.equal(far, close)
