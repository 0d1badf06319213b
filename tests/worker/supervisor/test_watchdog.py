"""The watchdog stops a trainer without progress, and no trainer that is only slow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest

from tunesmith_schema import ErrorCode, EventKind
from tunesmith_worker.rundir.paths import RunDirectory
from tunesmith_worker.rundir.progress import MARK_SECONDS, ProgressMark
from tunesmith_worker.supervisor import watchdog
from tunesmith_worker.supervisor.child.trainer_process import TrainerProcess
from tunesmith_worker.supervisor.watchdog import CPU_FACTOR, FACTOR, FLOOR_SECONDS, Watchdog

from . import test_supervise
from .test_supervise import EVENT, FakeApi, Run

supervised = test_supervise.run
"""The fixture."""

METRICS = EVENT.format(seq=50, kind="metrics", data='{"step": 1, "total_steps": 9, "loss": 1.0}')


class Trainer:
    """Trainer on an invented clock."""

    def __init__(self, root: Path) -> None:
        self.run, self.seconds, self.cpu = RunDirectory(root), 0.0, 0.0
        self.pid, self.is_paused = os.getpid(), False
        self.dog = Watchdog(self.run, lambda: self.seconds, lambda run, pid: self.cpu)
        self.marks = 0

    def works(self, seconds: float, *, stepped: bool, every: float | None, busy: float = 0) -> bool:
        """Pass time with a mark `every` seconds; return True if the watchdog finds a stall."""
        until, next_mark = self.seconds + seconds, self.seconds + (every or 1e18)
        while self.seconds < until:
            self.seconds += 10.0
            self.cpu += 10.0 * busy
            if self.seconds >= next_mark:
                next_mark += every or 0
                self.mark("progress")
            found = self.dog.stalled(cast("TrainerProcess", self), "train", stepped=stepped)
            if found is not None:
                self.found = found
                return True
        return False

    def mark(self, name: str) -> None:
        self.marks += 1
        path = self.run.root / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (2e9 + self.marks, 2e9 + self.marks))


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path)


def test_silence_after_the_first_step_is_a_stall_even_at_full_cpu(trainer: Trainer) -> None:
    assert not trainer.works(600, stepped=True, every=60)
    assert not trainer.works(FLOOR_SECONDS - 60, stepped=True, every=None, busy=1.0)
    assert trainer.works(120, stepped=True, every=None, busy=1.0)
    assert trainer.found.code == ErrorCode.TRAINER_STALLED
    assert "the limit is 1800 s" in trainer.found.message
    assert "nvidia-smi" in (trainer.found.hint or "")


def test_the_limit_grows_with_the_slowest_phase_seen(trainer: Trainer) -> None:
    slow = FLOOR_SECONDS - 60
    assert not trainer.works(3 * slow, stepped=True, every=slow)
    assert not trainer.works(FACTOR * slow - 600, stepped=True, every=None)
    assert trainer.works(1200, stepped=True, every=None)


def test_preparation_may_compute_for_hours_but_not_for_ever(trainer: Trainer) -> None:
    assert not trainer.works(CPU_FACTOR * FLOOR_SECONDS - 60, stepped=False, every=None, busy=0.9)
    assert trainer.works(120, stepped=False, every=None, busy=0.9)


def test_a_trainer_that_waits_before_the_first_step_is_stalled(trainer: Trainer) -> None:
    assert trainer.works(FLOOR_SECONDS + 60, stepped=False, every=None)


@pytest.mark.parametrize(
    "name", ["events.jsonl", "rollouts.jsonl", "report.json", "checkpoints/.step-9.part"]
)
def test_any_write_of_the_run_is_progress(trainer: Trainer, name: str) -> None:
    for _ in range(4):
        assert not trainer.works(FLOOR_SECONDS - 60, stepped=True, every=None)
        trainer.mark(name)
    assert not trainer.works(60, stepped=True, every=None)


def test_warnings_in_the_log_are_no_progress(trainer: Trainer) -> None:
    found = False
    for _ in range(8):
        trainer.mark("trainer.log")
        found = found or trainer.works(FLOOR_SECONDS / 4, stepped=True, every=None)
    assert found


def test_a_paused_trainer_is_not_stalled(trainer: Trainer) -> None:
    assert not trainer.works(60, stepped=True, every=None)
    trainer.is_paused = True
    assert not trainer.works(10 * FLOOR_SECONDS, stepped=True, every=None)
    trainer.is_paused = False
    assert not trainer.works(FLOOR_SECONDS - 60, stepped=True, every=None)


def test_a_mark_is_written_at_most_once_a_second(tmp_path: Path) -> None:
    now = 0.0
    mark = ProgressMark(tmp_path / "progress", lambda: now)
    times = set()
    for step in range(40):
        now = step * MARK_SECONDS / 4
        (tmp_path / "progress").unlink(missing_ok=True)
        mark.mark()
        if (tmp_path / "progress").exists():
            times.add(now)
    assert len(times) == 10


HANGS = "signal.signal(signal.SIGTERM, ON_SIGTERM); say('" + METRICS + "'); time.sleep(60)"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "FLOOR_SECONDS", 0.5)
    monkeypatch.setattr(watchdog, "FACTOR", 1.0)
    monkeypatch.setattr(watchdog, "CHECK_SECONDS", 0.05)
    monkeypatch.setenv("TUNESMITH_RELEASE_SECONDS", "0.5")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "on_sigterm", ["signal.SIG_IGN", "lambda *_: (end('stopped'), sys.exit(75))"]
)
def test_a_hung_trainer_is_stopped_and_the_attempt_counts_as_failed(
    supervised: Run,
    on_sigterm: str,
) -> None:
    """A trainer that obeys SIGTERM and one that must be killed end alike."""
    api = supervised(FakeApi(), HANGS.replace("ON_SIGTERM", on_sigterm))
    assert api.outcome.state == "failed"
    assert api.outcome.error.code == "trainer_stalled"
    assert api.outcome.error.category == "infrastructure"  # so another attempt is made, and counted
    [event] = [
        event for report in api.reports for event in report.events if event.kind == "stalled"
    ]
    assert event.kind is EventKind.STALLED
    assert "made no progress for" in event.message
    assert event.data["hint"]


@pytest.mark.usefixtures("impatient")
def test_a_slow_trainer_that_marks_its_progress_is_left_alone(supervised: Run) -> None:
    steps = "for _ in range(20): (root / 'progress').write_bytes(b''); time.sleep(0.1)"
    api = supervised(FakeApi(), f"say('{METRICS}')\n{steps}\nsave('adapter'); end('succeeded')")
    assert api.outcome.state == "succeeded"
