"""How graphs are captured and let go, on a fake of torch.cuda that has its rules."""

from __future__ import annotations

import pytest
import torch

from tests.worker.engine.patches.models import make_model
from tunesmith_worker.engine.rollout import native
from tunesmith_worker.engine.rollout.graphs import CudaRecorder

from .fake_cuda import FakeCuda
from .rollouts import engine_of
from .tape import REFUSAL
from .test_graphs import ragged


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    fake.put_in(monkeypatch)
    recorder = CudaRecorder(torch.device("cuda"))
    monkeypatch.setattr(native, "recorder_for", lambda device: recorder)
    return fake


def test_every_layout_of_every_call_is_recorded(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(make_model("llama"), max_rows=6)
    layouts = []
    for _ in range(2):
        found = engine.generate(ragged())
        figures = engine.figures
        assert figures.recording_error == ""
        layouts.append(figures.decode_steps - figures.graph_steps)
    assert layouts[0] == layouts[1] > 2, "steps that were not recorded: the first of each"
    assert len(cuda.users) == cuda.emptied >= 2 * 2
    assert set(cuda.users.values()) == {0}, "all graphs are gone"
    assert cuda.streams == 1
    monkeypatch.setattr(native, "recorder_for", lambda device: None)
    plain = engine.generate(ragged())
    assert [one.token_ids for one in found] == [one.token_ids for one in plain]


def test_a_run_that_fails_in_a_capture_says_why(cuda: FakeCuda) -> None:
    """Not what the capture's end says then; and the usual stream waits for what had begun."""
    recorder = CudaRecorder(torch.device("cuda"))

    def run() -> torch.Tensor:
        cuda.failing = True
        raise RuntimeError(REFUSAL)

    with pytest.raises(RuntimeError, match=REFUSAL):
        recorder.record(run)
    assert not cuda.capturing
    assert cuda.current is cuda.usual
    assert len(cuda.usual.waited_for) == 1


def test_a_capture_that_only_fails_at_its_end_is_no_recording(cuda: FakeCuda) -> None:
    recorder = CudaRecorder(torch.device("cuda"))

    def run() -> torch.Tensor:
        cuda.failing = True
        return torch.zeros(1)

    with pytest.raises(RuntimeError, match="previous error"):
        recorder.record(run)
    assert cuda.current is cuda.usual


def test_a_first_step_that_fails_is_waited_for(cuda: FakeCuda) -> None:
    recorder = CudaRecorder(torch.device("cuda"))
    with pytest.raises(ZeroDivisionError):
        recorder.run(lambda: torch.zeros(1) / (1 // 0))
    assert len(cuda.usual.waited_for) == 1
    assert cuda.current is cuda.usual
