"""The supervisor's side of the run report: what came before and after the trainer, and the whole.

The trainer's report.json is taken as it is found; where there is none, the phases that events have
told of stand in for it. Never imports torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import ValidationError

from tunesmith_schema import Claim, Outcome, PhaseName, RunReport
from tunesmith_worker.rundir.advice.judge import complete_report, empty_report

BEFORE_TRAINER = (PhaseName.DOWNLOAD, PhaseName.SPAWN)
"""Phases that only events tell of."""


class AttemptReport:
    """One attempt, from the moment at which its worker asked for a job.

    `phases` are the seconds by phase that events have told of so far; it is read each time.
    """

    def __init__(
        self,
        path: Path,
        claim: Claim,
        phases: Mapping[str, float],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._path, self._attempt, self._phases = path, claim.attempt, phases
        self._queued, self._now = claim.queued_seconds, now
        self._claim_seconds, self._began, self._began_at = 0.0, now(), time.time()
        self._spawned: float | None = None
        self._trainer_ended: float | None = None
        self._offered: object = None
        self._taken: object = None
        self.paused_seconds = 0.0

    def claimed(self, seconds: float) -> None:
        """The claim took that long and has just been answered."""
        self._claim_seconds, self._began = seconds, self._now() - seconds
        self._began_at = time.time() - seconds

    def trainer_spawned(self) -> None:
        self._spawned = self._now()

    def trainer_ended(self) -> None:
        """Its process is gone; what comes now is storing what it left."""
        self._trainer_ended = self._trainer_ended or self._now()

    def news(self, outcome: Outcome | None) -> RunReport | None:
        """The report, unless the server has taken one that says the same."""
        self._offered = (outcome, dict(self._phases), self._written())
        return self.report(outcome) if self._offered != self._taken else None

    def taken(self) -> None:
        """The server has what `news` gave last."""
        self._taken = self._offered

    def report(self, outcome: Outcome | None) -> RunReport:
        """As far as is known now."""
        now, told = self._now(), self._phases
        report = self._of_trainer()
        if report is None:
            report = empty_report(self._attempt, self._began_at)
            report.phases = dict(told)
        else:
            waited = self._waited_imports(report)
            report.phases |= {name: told[name] for name in BEFORE_TRAINER if name in told}
            if waited:
                report.phases[PhaseName.IMPORT] = told[PhaseName.IMPORT]
            if report.outcome is not None:
                report.phases[PhaseName.EXIT] = self._exit_seconds(report.wall_seconds + waited)
        report.phases[PhaseName.CLAIM] = self._claim_seconds
        if self._trainer_ended is not None:
            report.phases[PhaseName.UPLOAD] = now - self._trainer_ended
        report.attempt, report.started_at = self._attempt, self._began_at
        report.queued_seconds, report.paused_seconds = self._queued, self.paused_seconds
        report.outcome = outcome.state if outcome else None
        report.wall_seconds = now - self._began
        return complete_report(report)

    def _waited_imports(self, report: RunReport) -> float:
        """What of its imports a warm trainer did before it began to count."""
        told = self._phases.get(PhaseName.IMPORT, 0.0)
        return max(0.0, told - report.phases.get(PhaseName.IMPORT, 0.0)) if told else 0.0

    def _exit_seconds(self, trainer_seconds: float) -> float:
        """What the trainer's process lived beside its start and what it accounted for."""
        if self._spawned is None or self._trainer_ended is None:
            return 0.0
        lived = self._trainer_ended - self._spawned
        return max(0.0, lived - self._phases.get(PhaseName.SPAWN, 0.0) - trainer_seconds)

    def _written(self) -> int | None:
        try:
            return self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def _of_trainer(self) -> RunReport | None:
        try:
            return RunReport.model_validate_json(self._path.read_bytes())
        except (FileNotFoundError, ValidationError):  # none yet; or a trainer of another version
            return None
