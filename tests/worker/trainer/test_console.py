"""What `tunesmith run` shows: to somebody who looks on, and to nobody else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, read_events
from tunesmith_schema import EventKind, RunEvent, RunResult
from tunesmith_worker.rundir.paths import RunDirectory
from tunesmith_worker.trainer.console import ConsoleOutput
from tunesmith_worker.trainer.run import command as trainer_command
from tunesmith_worker.trainer.run import main

Command = Callable[..., tuple[Path, str]]
SHORT = {"max_steps": 3, "per_device_train_batch_size": 2, "save_steps": 100}


@pytest.fixture
def command(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """`tunesmith run DIR OPTIONS`: the directory, and what it printed."""

    def run_it(*options: str) -> tuple[Path, str]:
        run = make_run(QUESTIONS, recipe=SHORT)
        monkeypatch.setattr(sys, "argv", ["tunesmith run", str(run), *options])
        assert trainer_command() == 0
        return run, capfd.readouterr().out

    return run_it


def event(kind: EventKind, message: str, **data: float) -> RunEvent:
    return RunEvent(source_seq=1, created_at=0.0, kind=kind, message=message, data={**data})


def test_a_run_by_hand_shows_its_events_and_its_end(
    command: Command, recwarn: pytest.WarningsRecorder
) -> None:
    run, out = command()
    *lines, last = out.splitlines()
    told = [one.message for one in read_events(run) if one.kind != EventKind.METRICS]
    assert [line for line in lines if not line.startswith("Step ")] == told
    assert sum(line.startswith("Step 1/3: train_loss=") for line in lines) == 1
    assert last.startswith("succeeded at step 3, loss ")
    assert last.endswith(f", adapter in {run / 'adapter'}")
    assert not [w for w in recwarn if "is_gradient_checkpointing" in str(w.message)]


def test_samples_of_every_step_are_not_shown() -> None:
    shown: list[str] = []
    terminal = ConsoleOutput(shown.append)
    terminal.event(event(EventKind.SAMPLES, "step 1: 128 samples", step=1))
    terminal.event(event(EventKind.MESSAGE, "step 2: its 128 samples could not be kept"))
    assert shown == ["step 2: its 128 samples could not be kept"]


def test_json_is_the_result_alone(command: Command) -> None:
    _, out = command("--json")
    assert json.loads(out)["step"] == 3


def test_a_supervisors_log_does_not_grow(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESMITH_SUPERVISOR_PID", str(os.getpid()))
    assert command()[1] == ""


def test_a_reader_that_has_left_does_no_harm() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    program = (
        "from tunesmith_worker.trainer.console import show_on_stdout; show_on_stdout('a line')"
    )
    ended = subprocess.run([sys.executable, "-c", program], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_metrics_come_once_a_second_and_evaluations_always() -> None:
    lines: list[str] = []
    times = iter([0.0, 0.0, 0.4, 1.1, 1.1])
    terminal = ConsoleOutput(lines.append, now=lambda: next(times))
    for step in (1, 2, 3):
        terminal.event(event(EventKind.METRICS, f"Step {step}", train_loss=1.0))
        terminal.event(event(EventKind.METRICS, f"evaluated {step}", valid_loss=1.0))
    assert lines == ["Step 1", "evaluated 1", "evaluated 2", "Step 3", "evaluated 3"]


def test_a_run_that_failed_is_told_once(tmp_path: Path) -> None:
    lines: list[str] = []
    ConsoleOutput(lines.append).end(RunDirectory(tmp_path), RunResult(outcome="failed"))
    assert lines == []
    ConsoleOutput(lines.append).end(RunDirectory(tmp_path), RunResult(outcome="stopped", step=7))
    assert lines == ["stopped at step 7"]
    assert main(tmp_path / "nowhere", show=lines.append) == 2
    assert len(lines) == 1
