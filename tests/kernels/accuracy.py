"""Accuracy checks: fp32 up to rounding, half precision relative to the error of eager torch."""

from __future__ import annotations

import torch

from tunesmith_kernels.dispatch import uses_triton

# Triton's interpreter truncates; hardware rounds to the nearest number. The difference is up to one
# unit in the last place (2^-7 of the value in bf16), and half of it on average.
INTERPRETED_BF16 = 2**-8


def assert_exact(actual: torch.Tensor, truth: torch.Tensor) -> None:
    """Check that fp32 equals float64 up to rounding and contains no NaN.

    A sum that cancels has the rounding error of its terms. The tensor's largest value stands for
    their size.
    """
    assert actual.shape == truth.shape
    finite = truth.detach().abs().nan_to_num(0.0, posinf=0.0)
    atol = 1e-6 * max(1.0, float(finite.max())) if truth.numel() else 0.0
    torch.testing.assert_close(actual.double(), truth.double(), rtol=1e-5, atol=atol)


def relative_error(actual: torch.Tensor, truth: torch.Tensor) -> float:
    """Return the RMS of the error divided by the RMS of the exact values."""
    actual, truth = actual.detach().double(), truth.detach().double()
    return float((actual - truth).norm() / truth.norm())


def assert_no_worse(actual: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor) -> None:
    """Check that our error is at most 1.5 times the error of eager torch in the same dtype."""
    assert actual.dtype == eager.dtype
    assert actual.shape == truth.shape
    limit = 1.5 * relative_error(eager, truth)
    if uses_triton(actual) and not actual.is_cuda:
        limit += INTERPRETED_BF16
    assert relative_error(actual, truth) <= limit
