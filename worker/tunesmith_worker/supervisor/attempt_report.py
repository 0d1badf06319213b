"""Build an attempt's run report: the trainer's report.json, and the phases before and after
training.

If report.json does not exist, the phases come from events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import ValidationError

from tunesmith_schema import Claim, Evaluation, Outcome, PhaseName, RunReport
from tunesmith_worker.rundir.advice.judge import complete_report, empty_report
from tunesmith_worker.rundir.paths import EVALUATION

BEFORE_TRAINER = (PhaseName.DOWNLOAD, PhaseName.SPAWN)
"""Phases whose duration is only in events, not in report.json."""


class AttemptReport:
    """Report of one attempt, which starts with the claim of the job.

    `phases`: seconds of each phase, from events. The caller updates this mapping during the
    attempt.
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
        self._sent: object = None
        self.paused_seconds = 0.0

    def claimed(self, seconds: float) -> None:
        """Record that the claim has just succeeded and took `seconds`."""
        self._claim_seconds, self._began = seconds, self._now() - seconds
        self._began_at = time.time() - seconds

    def trainer_spawned(self) -> None:
        self._spawned = self._now()

    def trainer_ended(self) -> None:
        """Record the end of the trainer's process and the start of the last uploads."""
        self._trainer_ended = self._trainer_ended or self._now()

    def unsent(self, outcome: Outcome | None) -> RunReport | None:
        """Return the report, or None if the server already has it."""
        self._offered = (outcome, dict(self._phases), self._modified())
        return self.report(outcome) if self._offered != self._sent else None

    def mark_sent(self) -> None:
        """Record that the server has the report that `unsent` last returned."""
        self._sent = self._offered

    def report(self, outcome: Outcome | None) -> RunReport:
        """Build the current report."""
        now, phases = self._now(), self._phases
        report = self._read_trainer_report()
        if report is None:
            report = empty_report(self._attempt, self._began_at)
            report.phases = dict(phases)
        else:
            waited = self._warm_import_seconds(report)
            report.phases |= {name: phases[name] for name in BEFORE_TRAINER if name in phases}
            if waited:
                report.phases[PhaseName.IMPORT] = phases[PhaseName.IMPORT]
            if report.outcome is not None:
                report.phases[PhaseName.EXIT] = self._exit_seconds(report.wall_seconds + waited)
        report.phases[PhaseName.CLAIM] = self._claim_seconds
        if self._trainer_ended is not None:
            report.phases[PhaseName.UPLOAD] = now - self._trainer_ended
        report.attempt, report.started_at = self._attempt, self._began_at
        report.queued_seconds, report.paused_seconds = self._queued, self.paused_seconds
        report.evaluation = self._read_evaluation()
        report.outcome = outcome.state if outcome else None
        report.wall_seconds = now - self._began
        return complete_report(report)

    def _read_evaluation(self) -> Evaluation | None:
        try:
            content = self._path.with_name(EVALUATION).read_bytes()
            return Evaluation.model_validate_json(content)
        except (FileNotFoundError, ValidationError):  # no report yet, or from another version
            return None

    def _warm_import_seconds(self, report: RunReport) -> float:
        """Return the seconds of imports that the events contain, but the report of a warm trainer
        does not."""
        seconds = self._phases.get(PhaseName.IMPORT, 0.0)
        return max(0.0, seconds - report.phases.get(PhaseName.IMPORT, 0.0)) if seconds else 0.0

    def _exit_seconds(self, trainer_seconds: float) -> float:
        if self._spawned is None or self._trainer_ended is None:
            return 0.0
        lived = self._trainer_ended - self._spawned
        return max(0.0, lived - self._phases.get(PhaseName.SPAWN, 0.0) - trainer_seconds)

    def _modified(self) -> int | None:
        try:
            return self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def _read_trainer_report(self) -> RunReport | None:
        try:
            return RunReport.model_validate_json(self._path.read_bytes())
        except (FileNotFoundError, ValidationError):  # no report, or from another version
            return None
