"""Which device a trainer takes, and that it does not take the CPU for want of a driver."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_worker.engine.model import base_model as model
from tunesmith_worker.engine.model.base_model import find_device
from tunesmith_worker.rundir.errors import RunError


@pytest.fixture
def card_without_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A host with a card, torch built for CUDA, and no device that torch could use."""
    control = tmp_path / "nvidiactl"
    control.touch()
    monkeypatch.setattr(model, "NVIDIA_CONTROL", control)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return monkeypatch


def says(text: str) -> object:
    def init() -> None:
        raise RuntimeError(text)

    return init


def test_an_old_driver_is_an_error_with_a_remedy(card_without_cuda: pytest.MonkeyPatch) -> None:
    text = "The NVIDIA driver on your system is too old (found version 12020)."
    card_without_cuda.setattr(torch.cuda, "init", says(text))
    with pytest.raises(RunError) as caught:
        find_device()
    failure = caught.value.failure
    assert failure.code == ErrorCode.GPU_NOT_USABLE
    assert failure.category == ErrorCategory.INFRASTRUCTURE
    assert "too old" in failure.message
    assert "580" in (failure.hint or "")


def test_no_card_in_sight_is_the_operators_choice(card_without_cuda: pytest.MonkeyPatch) -> None:
    card_without_cuda.setattr(torch.cuda, "init", says("No CUDA GPUs are available"))
    assert not find_device().is_gpu


def test_a_host_without_a_card_trains_on_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(model, "NVIDIA_CONTROL", Path("/nowhere"))
    assert find_device().name == "cpu"
