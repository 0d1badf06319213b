"""The trainer as a process: SIGTERM, control.json, and the death of its supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, read_result
from tunesmith_schema import EXIT_STOPPED, EventKind
from tunesmith_worker.rundir.verify_resume_point import verify

LONG = {"max_steps": 100_000, "per_device_train_batch_size": 2, "save_steps": 100_000}


_started: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def _no_orphans() -> Iterator[None]:
    """Kill trainers that a failed test left running; they would train for an hour."""
    yield
    while _started:
        process = _started.pop()
        process.kill()
        process.wait()


def start(run: Path, **environment: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tunesmith_worker.trainer", str(run)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stderr=subprocess.DEVNULL,
    )
    _started.append(process)
    return process


def wait_until(happened: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert process.poll() is None, f"ended early with {process.returncode}"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """Return the CPU time that a running process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def has_trained(run: Path) -> bool:
    return (run / "events.jsonl").exists() and b'"metrics"' in (run / "events.jsonl").read_bytes()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_and_ctrl_c_in_training_save_a_resume_point(
    make_run: MakeRun, sent: signal.Signals
) -> None:
    run = make_run(QUESTIONS, recipe=LONG)
    process = start(run)
    wait_until(lambda: has_trained(run), process)
    process.send_signal(sent)
    assert process.wait(30) == EXIT_STOPPED
    result = read_result(run)
    assert result.outcome == "stopped"
    point = event_data(run, EventKind.RESUME_POINT)[-1]
    assert point["step"] == result.step > 0
    assert verify(run / str(point["directory"])).step == result.step
    assert not (run / "adapter").exists()


def test_a_cancelled_run_leaves_without_saving(make_run: MakeRun) -> None:
    run = make_run(QUESTIONS, recipe=LONG)
    process = start(run)
    wait_until(lambda: has_trained(run), process)
    (run / "control.json").write_text('{"action": "cancel"}')  # no signal: seen at a step's end
    assert process.wait(30) == EXIT_STOPPED
    assert read_result(run).outcome == "stopped"
    assert not event_data(run, EventKind.RESUME_POINT)


def test_sigterm_before_training_leaves_at_once(make_run: MakeRun) -> None:
    run = make_run(QUESTIONS, recipe=LONG)
    process = start(run)
    maps = Path(f"/proc/{process.pid}/maps")
    wait_until(lambda: "libtorch" in maps.read_text(), process)  # it is importing torch
    before = cpu_seconds(process)
    process.send_signal(signal.SIGTERM)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == EXIT_STOPPED
    assert usage.ru_utime + usage.ru_stime - before < 1.0  # CPU time: the machine may be busy
    assert read_result(run).outcome == "stopped"
    assert not (run / "events.jsonl").exists()


def test_it_leaves_when_its_supervisor_is_not_its_parent(make_run: MakeRun) -> None:
    run = make_run(QUESTIONS, recipe=LONG)
    process = start(run, TUNESMITH_SUPERVISOR_PID="1")
    assert process.wait(30) == 1
    assert not (run / "result.json").exists()


def test_it_dies_with_its_supervisor_and_leaves_no_earlier_outcome(make_run: MakeRun) -> None:
    run = make_run(QUESTIONS, recipe=LONG)
    (run / "result.json").write_text('{"outcome": "succeeded"}')
    (run / "report.json").write_text("{}")
    supervise = (
        "import os, subprocess, sys, time\n"
        "os.environ['TUNESMITH_SUPERVISOR_PID'] = str(os.getpid())\n"
        "command = [sys.executable, '-m', 'tunesmith_worker.trainer', sys.argv[1]]\n"
        "child = subprocess.Popen(command)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", supervise, str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert supervisor.stdout is not None
    trainer = int(supervisor.stdout.readline())
    wait_until((run / "events.jsonl").exists, supervisor)
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()
    deadline = time.monotonic() + 10
    while _is_running(trainer):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not (run / "result.json").exists()
    assert not (run / "report.json").exists()


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # nobody reaps it in a container without an init
