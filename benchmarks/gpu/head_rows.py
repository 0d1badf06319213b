"""Accuracy and time of the kernel that overwrites a chunk of logits with its gradient.

The logits are bf16, and each row has one logit for each token of Llama 3's vocabulary. A chunk is
at most 2 GiB, the limit in tunesmith_kernels.log_prob. The kernel reads each row of logits twice
and writes it once. The second read of a row comes from the L2 cache, so the minimum traffic is 2
bytes read and 2 bytes written per logit.
"""

from __future__ import annotations

from typing import Any

import torch

from tunesmith_kernels.head_rows import read_rows
from tunesmith_kernels.head_types import LogitTransform, RowStatistics

from ..kernel_operations import Shape
from ..worst import as_error
from .timing import copy_bytes_per_second, median_seconds

VOCABULARY = 128_256
MOST_ROWS = 4096
CHECKED_ROWS = 256
FP32_LIMIT = 1e-5


def head_rows(shape: Shape, device: torch.device) -> dict[str, Any]:  # Any: JSON
    """Measure the head-rows kernel's time. `ms_metrics`: milliseconds of a call that also computes
    each row's entropy, and whether the row's target is the most likely token."""
    vocabulary = _vocabulary(device)
    rows = min(shape.rows, MOST_ROWS)
    logits = (torch.randn(rows, vocabulary, device=device) * 3).bfloat16()
    targets = torch.randint(vocabulary, (rows,), device=device)
    plain, metrics = (_statistics(logits, more) for more in (False, True))

    # Each call overwrites the logits; the values do not affect the time.
    def once(out: RowStatistics) -> None:
        read_rows(logits, targets, LogitTransform(), out, gradient=True)

    seconds = median_seconds(
        {"ours": lambda: once(plain), "metrics": lambda: once(metrics)},
        device,
        repeats=20 if device.type == "cuda" else 1,
    )
    moved = 2 * logits.nbytes
    return {
        "rows": rows,
        "vocabulary": vocabulary,
        "ms": {"ours": round(seconds["ours"] * 1e3, 4)},
        "ms_metrics": round(seconds["metrics"] * 1e3, 4),
        "formula": "2 * rows * vocabulary: logits are read, their gradient is written",
        "barred": True,
        "bound": "bandwidth",
        "bytes": moved,
        "gb_per_s": round(moved / seconds["ours"] / 1e9, 1),
        "ratio": round(moved / seconds["ours"] / copy_bytes_per_second(device), 3),
    }


def check_head_rows(device: torch.device) -> dict[str, Any]:  # Any: JSON
    """Check the accuracy of the head-rows kernel in fp32."""
    error = _error(torch.randn(CHECKED_ROWS, _vocabulary(device), device=device) * 3)
    return {"fp32_error": error, "passed": error <= FP32_LIMIT}


def _vocabulary(device: torch.device) -> int:
    return VOCABULARY if device.type == "cuda" else 300


def _statistics(logits: torch.Tensor, metrics: bool) -> RowStatistics:
    return RowStatistics.empty(
        len(logits), like=logits, dtype=torch.float32, entropy=metrics, top1=metrics
    )


def _error(logits: torch.Tensor) -> float:
    """Return the largest relative RMS error of the kernel's log-probs, entropy and gradient of the
    logits, compared with float64."""
    targets = torch.randint(logits.shape[1], (len(logits),), device=logits.device)
    exact = logits.double()
    log_p = exact.log_softmax(-1)
    gradient = exact.scatter(1, targets[:, None], float("-inf")).softmax(-1)
    out = _statistics(logits, True)
    read_rows(logits, targets, LogitTransform(), out, gradient=True)
    pairs = (
        (out.log_probs(), log_p.gather(1, targets[:, None])[:, 0]),
        (out.entropy(), -(log_p.exp() * log_p).sum(-1)),
        (logits, gradient),
    )
    return max(
        as_error(float((value.double() - truth).norm() / truth.norm())) for value, truth in pairs
    )
