"""Every kernel test runs on both paths, over memory that is NaN until it is written.

The Triton path is compiled where there is a GPU and interpreted elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

# What cuBLAS asks for where algorithms must be deterministic, as the fixture below has them.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

from tunesmith_kernels import tiles
from tunesmith_kernels.dispatch import interpreted


@pytest.fixture(params=["cpu", "triton"])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Where a test puts its tensors so that they take the path of its name."""
    if request.param == "cpu":
        yield torch.device("cpu")
    elif torch.cuda.is_available():
        yield torch.device("cuda")
    else:
        with interpreted():
            yield torch.device("cpu")


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """torch.empty and its kin give NaN: a cell that a kernel forgets to write fails its test."""
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tiles of a few rows, so that small tensors have several and a ragged last one."""
    monkeypatch.setattr(tiles, "TILE_ELEMENTS", 200)
