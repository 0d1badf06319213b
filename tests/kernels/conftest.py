"""Fixtures of the kernel tests. Every test runs on both paths, with memory that is NaN until
written.

With a GPU, the Triton path is compiled; without one, it is interpreted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

# cuBLAS needs this for deterministic algorithms, which the fixture below enables.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

from tunesmith_kernels import tiles
from tunesmith_kernels.dispatch import interpreted


@pytest.fixture(params=["cpu", "triton"])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Device on which a test's tensors take the path `cpu` or `triton`."""
    if request.param == "cpu":
        yield torch.device("cpu")
    elif torch.cuda.is_available():
        yield torch.device("cuda")
    else:
        with interpreted():
            yield torch.device("cpu")


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """Make torch.empty return NaN, so that a test fails if a kernel leaves an element unwritten."""
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use CPU tiles of a few rows, so that small tensors have several tiles and a shorter last
    one."""
    monkeypatch.setattr(tiles, "TILE_ELEMENTS", 200)
