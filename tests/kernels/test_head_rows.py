"""Programs of the head-rows kernel: one per multiprocessor, each for several rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tunesmith_kernels.dispatch import interpreted
from tunesmith_kernels.head_rows import read_rows
from tunesmith_kernels.head_types import LogitTransform, RowStatistics

ROWS, VOCABULARY = 7, 50


def read(logits: torch.Tensor, targets: torch.Tensor) -> RowStatistics:
    out = RowStatistics.empty(
        len(logits), like=logits, dtype=torch.float32, entropy=True, top1=True
    )
    read_rows(logits, targets, LogitTransform(), out, gradient=True)
    return out


def test_a_multiprocessor_has_one_program_which_reads_several_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that the rows in progress fit the L2 cache until they are read again."""
    with interpreted():
        from tunesmith_kernels import head_rows_triton

        kernel, grids = head_rows_triton._row_kernel, []

        class Noted:
            def __getitem__(self, grid: Any) -> Any:  # Any: as Triton's kernels
                grids.append(grid)
                return kernel[grid]

        monkeypatch.setattr(head_rows_triton, "_row_kernel", Noted())
        logits, targets = torch.randn(ROWS, VOCABULARY), torch.arange(ROWS)
        expected_logits = logits.clone()
        found = read(logits, targets)
        read(logits[:1].clone(), targets[:1])
    assert grids == [(2,), (1,)]  # the interpreter stands for a device of two multiprocessors
    expected = read(expected_logits, targets)
    assert torch.allclose(found.log_probs(), expected.log_probs(), atol=1e-6)
    assert torch.allclose(found.entropy(), expected.entropy(), atol=1e-5)
    assert torch.allclose(logits, expected_logits, atol=1e-6)
