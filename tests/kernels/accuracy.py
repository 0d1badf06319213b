"""How close is close: fp32 to rounding, half precision relative to what eager torch gets."""

from __future__ import annotations

import torch

from tunesmith_kernels.dispatch import uses_triton

# triton's interpreter truncates where hardware rounds to the nearest: up to one unit in the last
# place, 2^-7 of the value in bf16, half of it in the mean.
INTERPRETED_BF16 = 2**-8


def assert_exact(actual: torch.Tensor, truth: torch.Tensor) -> None:
    """fp32 against float64: equal to rounding, NaN nowhere."""
    assert actual.shape == truth.shape
    torch.testing.assert_close(actual.double(), truth.double(), rtol=1e-5, atol=1e-6)


def relative_error(actual: torch.Tensor, truth: torch.Tensor) -> float:
    """RMS of the error over RMS of the truth."""
    actual, truth = actual.detach().double(), truth.detach().double()
    return float((actual - truth).norm() / truth.norm())


def assert_no_worse(actual: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor) -> None:
    """The error against the truth is at most 1.5 times eager torch's in the same dtype."""
    assert actual.dtype == eager.dtype
    assert actual.shape == truth.shape
    limit = 1.5 * relative_error(eager, truth)
    if uses_triton(actual) and not actual.is_cuda:
        limit += INTERPRETED_BF16
    assert relative_error(actual, truth) <= limit
