"""When resume points are taken, what they cost, and what stays on the disk."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, read_result
from tunesmith_schema import ErrorCode, EventKind, Recipe
from tunesmith_worker.rundir.paths import RunDirectory, file_hash
from tunesmith_worker.trainer.checkpoints import saver, state, write
from tunesmith_worker.trainer.checkpoints.light_checkpoints import LightCheckpoints
from tunesmith_worker.trainer.checkpoints.state import ResumeState
from tunesmith_worker.trainer.checkpoints.tensors import write_tensors
from tunesmith_worker.trainer.run import main

from .interrupted import interrupt, resume_points

RECIPE: dict[str, Any] = {
    "max_steps": 6,
    "per_device_train_batch_size": 4,
    "lora": {"r": 4},
    "self_check": False,
}


def steps_told(run: Path) -> list[int]:
    return [int(point["step"]) for point in event_data(run, EventKind.RESUME_POINT)]


def test_a_short_run_takes_none_and_named_steps_are_taken_but_for_the_last(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = make_run(QUESTIONS, recipe=RECIPE, name="short")
    assert main(short) == 0
    assert steps_told(short) == []
    named = make_run(QUESTIONS, recipe=RECIPE | {"save_steps": 2}, name="named")
    assert main(named) == 0
    assert steps_told(named) == [2, 4]
    stopped = make_run(QUESTIONS, recipe=RECIPE | {"save_steps": 1}, name="stopped")
    assert interrupt(stopped, monkeypatch, stop=5) == 75
    assert resume_points(stopped) == ["resume-4", "resume-5"]


@pytest.mark.parametrize(("thread", "cores", "expected"), [(0.0, 0, [1, 5]), (1.0, 4, [1, 8])])
def test_otherwise_they_are_a_hundred_times_as_far_apart_as_they_cost(
    make_run: MakeRun,
    monkeypatch: pytest.MonkeyPatch,
    thread: float,
    cores: int,
    expected: list[int],
) -> None:
    """The first step ends after 31 s. Each save blocks for a second, and its thread computes for
    `thread` seconds."""
    clock = [0.0]
    times = (lambda: clock[0], lambda: cores * clock[0])
    monkeypatch.setattr(saver.ResumePoints.__init__, "__defaults__", times)
    without_cpu(monkeypatch, but=thread)
    taken = state.capture_state

    def slow(*given: Any) -> Any:
        clock[0] += 1.0  # blocks for a second
        return taken(*given)

    def after_step(self: Any, *given: Any, **_: Any) -> None:
        clock[0] += 31.0
        self._report(self._writer.finish(wait=True))  # the thread is quicker than 31 s
        on_step_end(self, *given)

    on_step_end = saver.ResumePoints.on_step_end
    monkeypatch.setattr(saver, "capture_state", slow)
    monkeypatch.setattr(saver.ResumePoints, "on_step_end", after_step)
    run = make_run(QUESTIONS, recipe=RECIPE | {"max_steps": 9})
    assert main(run) == 0
    assert steps_told(run) == expected, "after 31 s, then not before 100 or 200 s have passed"


def test_a_host_that_gives_training_few_cpu_seconds_takes_fewer(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step has 31 s by the clock, in which the process gets 1 CPU-second."""
    clock, cpu = [0.0], [0.0]
    times = (lambda: clock[0], lambda: cpu[0])
    monkeypatch.setattr(saver.ResumePoints.__init__, "__defaults__", times)
    without_cpu(monkeypatch, but=0.025)
    taken, on_step_end = state.capture_state, saver.ResumePoints.on_step_end

    def slow(*given: Any) -> Any:
        cpu[0] += 0.01
        return taken(*given)

    def after_step(self: Any, *given: Any, **_: Any) -> None:
        clock[0] += 31.0
        cpu[0] += 1.0
        self._report(self._writer.finish(wait=True))  # the thread is quicker than 31 s
        on_step_end(self, *given)

    monkeypatch.setattr(saver, "capture_state", slow)
    monkeypatch.setattr(saver.ResumePoints, "on_step_end", after_step)
    run = make_run(QUESTIONS, recipe=RECIPE | {"max_steps": 9})
    assert main(run) == 0
    assert steps_told(run) == [1, 5], "0.035 CPU-seconds each: 3.5 have to pass"


def without_cpu(monkeypatch: pytest.MonkeyPatch, *, but: float = 0.0) -> None:
    """What the writing thread says it cost, in CPU-seconds."""
    write_point = write.ResumePointWriter._write

    def written(*given: Any) -> Any:
        return replace(write_point(*given), cpu_seconds=but)

    monkeypatch.setattr(write.ResumePointWriter, "_write", written)


def test_a_state_too_large_to_copy_is_written_as_it_lies(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "host_free", lambda: 0)
    monkeypatch.setattr(ResumeState, "copied", None)
    run = make_run(QUESTIONS, recipe=RECIPE | {"save_steps": 2})
    assert interrupt(run, monkeypatch, kill=5) == 1
    assert resume_points(run) == ["resume-2", "resume-4"]
    assert main(run) == 0


def test_a_disk_that_is_full_when_the_thread_writes_ends_the_run_by_name(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "write_tensors", full)
    run = make_run(QUESTIONS, recipe=RECIPE | {"save_steps": 2})
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    assert error.code == ErrorCode.DISK_FULL
    assert list((run / "checkpoints").glob(".*.part")) == []


def test_checkpoints_to_sample_from_stay_within_their_limit_across_a_stop(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = RECIPE | {"save_steps": 1, "save_total_limit": 1, "keep_every": 4, "max_steps": 7}
    run = make_run(QUESTIONS, recipe=recipe)
    assert interrupt(run, monkeypatch, stop=5) == 75
    assert main(run) == 0
    left = {path.name for path in (run / "checkpoints").iterdir()}
    assert left == {"step-4", "step-7"}


def test_a_forks_limit_counts_its_own_checkpoints_alone(tmp_path: Path) -> None:
    for forked in (False, True):
        run = RunDirectory(tmp_path / str(forked))
        for step in (9, 10):
            run.checkpoint(step).mkdir(parents=True)
        light = LightCheckpoints(run, Recipe(save_total_limit=1), forked=forked)
        light.saved = {"8": 1.0}  # better than any that follows
        light.on_train_begin(None, None, None)
        light.add(9, 2.0)
        light.add(10, 3.0)
        assert run.checkpoint(10).is_dir()
        assert run.checkpoint(9).is_dir() == forked, "the best of its own"


def test_tensors_are_written_as_safetensors_reads_them(tmp_path: Path) -> None:
    tensors = {
        "empty": torch.zeros(0, 3),
        "number": torch.tensor(3.5),
        "transposed": torch.arange(6, dtype=torch.float64).reshape(2, 3).T,
        "large": torch.randn(3, 1 << 21),
        **{
            str(dtype): torch.arange(5).to(dtype)
            for dtype in (torch.bfloat16, torch.float16, torch.int16, torch.uint8, torch.bool)
        },
    }
    path = tmp_path / "some.safetensors"
    entry = write_tensors(path, tensors)
    assert (entry.bytes, entry.sha256) == (path.stat().st_size, file_hash(path))
    again = load_file(path)
    assert again.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype
        assert torch.equal(again[name], tensor)


def test_writing_goes_on_beside_training(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread takes its time, and steps go on: only the next one waits for it."""
    written, on_step_end = write_tensors, saver.ResumePoints.on_step_end
    next_is_over = threading.Event()
    waited: list[bool] = []

    def slow(*given: Any) -> Any:
        waited.append(next_is_over.wait(30.0))
        return written(*given)

    def after_step(self: Any, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 6:
            next_is_over.set()
        on_step_end(self, args, state, control)

    monkeypatch.setattr(write, "write_tensors", slow)
    monkeypatch.setattr(saver.ResumePoints, "on_step_end", after_step)
    run = make_run(QUESTIONS, recipe=RECIPE | {"save_steps": 5, "max_steps": 6})
    assert main(run) == 0
    assert set(waited) == {True}, "step 6 was over before the point of step 5 was on disk"
    assert steps_told(run) == [5]
