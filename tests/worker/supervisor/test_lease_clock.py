"""The supervisor measures leases by a clock that cannot jump."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tunesmith_schema import Report, ReportReply
from tunesmith_worker.supervisor.launcher import Launcher
from tunesmith_worker.supervisor.supervise import supervise

from .test_disk_full import FakeApi, never, settings

TRAINER = """
import json, pathlib, sys, time
time.sleep(1.5)
result = {"outcome": "stopped", "step": 1}
pathlib.Path(sys.argv[-1], "result.json").write_text(json.dumps(result))
"""


class JumpingApi(FakeApi):
    """With every report the host's clock jumps by a day."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        super().__init__()
        self._monkeypatch, self._seconds, self._real = monkeypatch, seconds, time.time

    def report(self, job_id: str, report: Report, timeout: float) -> ReportReply:
        jumped = self._seconds * (len(self.reports) + 1)
        self._monkeypatch.setattr(time, "time", lambda: self._real() + jumped)
        return super().report(job_id, report, timeout)


@pytest.mark.parametrize("seconds", [86_400.0, -86_400.0])
def test_a_jump_of_the_workers_clock_neither_pauses_nor_hurries_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    api = JumpingApi(monkeypatch, seconds)
    began = time.monotonic()
    chosen = settings(tmp_path, TRAINER)
    assert supervise(chosen, api, "w", never, Launcher(chosen))
    assert 1.0 < time.monotonic() - began < 10
    assert api.outcome is not None
    assert api.outcome.state == "released", "the trainer wrote its result undisturbed"
    assert len(api.reports) < 15, "reports keep their pace"
