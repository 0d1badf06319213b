"""One claimed job on this host: holds the lease by reporting, carries events, obeys the server.

Knows nothing of training. Everything that takes long runs in the transfer thread, while the main
thread goes on reporting.
"""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from tunesmith_schema import (
    Claim,
    Control,
    ControlAction,
    ControlFile,
    ErrorCode,
    EventKind,
    Outcome,
    Report,
    RunEvent,
    RunResult,
    StoredFile,
)
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import RunDirectory, remove_unfinished, write_json
from tunesmith_worker.supervisor.child.trainer_process import TrainerProcess

from .attempt_report import AttemptReport
from .event_reader import EventReader
from .fetch import fetch_inputs
from .fetch_resume_points import clean_run_directory
from .launcher import Launcher
from .server_api import FencedOut, ServerApi, ServerFault, ServerRefused, ServerUnreachable
from .server_commands import Released, ServerCommands
from .settings import WorkerSettings
from .uploads import ResumePointUploads, SampleUploads

log = logging.getLogger(__name__)

TICK_SECONDS = 0.1
REPORT_SECONDS = 1.0
REPORT_TIMEOUT_SECONDS = 20.0
PAUSE_AT = 0.75
"""Share of the lease that may pass without an answer before the trainer is paused. A report waits
for its answer no longer than the rest, so that the pause comes in time even if the server hangs."""
STARTING = frozenset({"download", "spawn", "import", "load", "data"})
"""Parts of the work whose end is told at once: somebody is watching."""
MAX_FAULTS = 6
"""Answers of 5xx, or of damaged content, in a row after which a transfer counts as impossible."""
MAX_DELAY_SECONDS = 30.0
LEAVING_SECONDS, STORING_SECONDS = 15.0, 600.0
"""How long a job that ends early may wait until its newest resume point is stored: while the worker
is told to go, and otherwise."""

T = TypeVar("T")


class JobSession:
    def __init__(
        self,
        settings: WorkerSettings,
        api: ServerApi,
        worker_id: str,
        claim: Claim,
        stopping: Callable[[], bool],
        launcher: Launcher,
        at_once: Callable[[], bool] = lambda: False,
    ) -> None:
        """`at_once`: whether this worker has no time left for the trainer's step."""
        self._launcher, self._at_once = launcher, at_once
        self._settings, self._api, self._worker_id = settings, api, worker_id
        self._claim, self._stopping = claim, stopping
        self._run = RunDirectory(settings.run_dir(claim.job_id, claim.attempt))
        self._commands = ServerCommands(self._run)
        self._feed = EventReader(self._run.events)
        self._account = AttemptReport(self._run.report, claim, self._feed.phases)
        self._background = ThreadPoolExecutor(1, thread_name_prefix="transfer")
        self._trainer: TrainerProcess | None = None
        self._last_answer = time.monotonic()
        self._next_report = 0.0
        self._lease = claim.lease_seconds
        self._uploading: Future[list[StoredFile]] | None = None
        self._points = ResumePointUploads(
            self._run, self._feed, self._store, claim.recipe.keep_every
        )
        self._samples = SampleUploads(self._run, self._feed, self._store)
        self._answered = True
        self._leaving = self._closed = False
        self._leave_by = math.inf
        self._unwanted = False
        """Cancelled when it was on its way out: what it has saved is not waited for."""

    def prepare(self, *, claim_seconds: float) -> None:
        """Write spec.json and fetch what it names, holding the lease meanwhile."""
        self._account.claimed(claim_seconds)
        for folder in ("data", "checkpoints"):
            (self._run.root / folder).mkdir(parents=True)
        events = EventLog(self._run.events)
        seconds = round(self._claim.queued_seconds + claim_seconds, 3)
        queued = f"queued {seconds:.0f} s" if seconds >= 10 else f"queued {seconds:.2f} s"
        events.append(EventKind.PHASE, queued, {"phase": "claim", "seconds": seconds})
        with events.phase("download"):
            spec = self._meanwhile(
                self._background.submit(
                    fetch_inputs,
                    self._settings,
                    self._api,
                    self._claim,
                    self._run.root,
                    self._insist,
                    events,
                )
            )
        write_json(self._run.spec, spec)
        before = self._run.root.with_name(f"attempt-{self._claim.attempt - 1}") / "plan.json"
        if before.is_file():  # this host had the job before: it goes on as it had settled
            shutil.copyfile(before, self._run.plan)

    def spawn(self) -> None:
        self._account.trainer_spawned()
        self._trainer = self._launcher.launch(self._run.root)

    def watch(self) -> Outcome:
        """Until the trainer has ended and everything it made is stored."""
        trainer = self._trainer
        assert trainer is not None, "spawn comes first"
        while trainer.poll() is None:
            time.sleep(TICK_SECONDS)
            self._tick()
        self._launcher.keep_warm_trainer()  # imports while the outputs are stored
        return self._outcome(trainer)

    def leave(self, grace_seconds: float) -> Outcome:
        """Stop the trainer at a step's end. What it had finished by then is kept, not released."""
        self._leaving, self._leave_by = True, time.monotonic() + grace_seconds
        self.stop_trainer(grace_seconds, cancel=False)
        if self._trainer is None or not self._run.result.is_file():
            return Outcome(state="released")
        return self._outcome(self._trainer)

    def _outcome(self, trainer: TrainerProcess) -> Outcome:
        self._account.trainer_ended()
        if not self._run.result.is_file():
            if self._commands.ended_by_pause(trainer.poll()):
                return Outcome(state="released")
            return Outcome(state="failed", error=trainer.why_it_ended())
        result = RunResult.model_validate_json(self._run.result.read_bytes())
        if result.outcome == "failed":
            return Outcome(state="failed", error=result.error, step=result.step)
        if result.outcome == "stopped":
            return Outcome(state="released")
        assert result.directory is not None, "a run that succeeded names what it made"
        folder = self._run.root / result.directory
        return Outcome(
            state="succeeded",
            kind=result.kind,
            step=result.step,
            trained_tokens=result.trained_tokens,
            files=self._meanwhile(self._background.submit(self._store, folder)),
        )

    def stop_trainer(self, grace_seconds: float, *, cancel: bool) -> None:
        """SIGTERM, a while, SIGKILL. `cancel` tells it to save nothing."""
        if self._trainer is None:
            return
        if cancel:
            with contextlib.suppress(OSError):  # no space for it: the trainer is killed anyway
                write_json(self._run.control, ControlFile(action=ControlAction.CANCEL))
        self._trainer.ask_to_stop()
        deadline = time.monotonic() + grace_seconds
        while self._trainer.poll() is None and time.monotonic() < deadline:
            if self._at_once() or self._unwanted:
                break
            self._hold()
            time.sleep(0.02)
        self._trainer.kill()
        self._account.trainer_ended()

    def finish(self, outcome: Outcome) -> bool:
        """Have the server store every remaining event, then the outcome; whether it has."""
        self._leaving = True
        if outcome.state == "cancelled":
            self._feed.abandon_uploads()
        if outcome.state in ("released", "failed"):
            self._store_newest_point()
        self._points.close()
        while not self._told(outcome := self._as_wanted(outcome)):
            if time.monotonic() > self._leave_by or self._at_once() or self._unwanted:
                self._feed.abandon_uploads()
            if self._stopping() and not self._answered:
                log.warning("leaving: how %s ended is told later", self._claim.job_id)
                return False
            time.sleep(TICK_SECONDS if self._answered else REPORT_SECONDS)
        full = outcome.error is not None and outcome.error.code == ErrorCode.DISK_FULL
        if outcome.state != "failed" or full:
            clean_run_directory(self._run.root, outcome)
        remove_unfinished(self._run.root)  # of a trainer that was killed: users' data
        return True

    def _as_wanted(self, outcome: Outcome) -> Outcome:
        released = outcome.state == "released"
        return Outcome(state="cancelled") if released and self._unwanted else outcome

    def _store_newest_point(self) -> None:
        """So that any host can go on from it; it stays on this one all the same."""
        seconds = LEAVING_SECONDS if self._stopping() else STORING_SECONDS
        deadline = time.monotonic() + seconds
        self._look()
        while self._points.busy and time.monotonic() < min(deadline, self._leave_by):
            if self._at_once() or self._unwanted:
                return
            time.sleep(TICK_SECONDS)
            self._tick()

    def forget_events(self) -> None:
        self._feed.clear()

    @property
    def trainer_pid(self) -> int | None:
        """Of the trainer, which leads its session; None: there was none."""
        return None if self._trainer is None else self._trainer.pid

    def _hold(self) -> None:
        """Keep the lease, and store what comes, while the trainer ends."""
        if self._leaving and time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + REPORT_SECONDS
            try:
                self._look()
                self._report(self._feed.batch(), None)
            except ServerUnreachable as error:
                log.warning("report of %s waits: %s", self._claim.job_id, error)

    def _told(self, outcome: Outcome) -> bool:
        """One try at the final report; true when there is nothing more to say."""
        try:
            self._look()
            batch = self._feed.batch()
            whole = len(batch) == len(self._feed)
            self._report(batch, outcome if whole else None)
            return whole
        except ServerUnreachable as error:
            log.warning("final report of %s waits: %s", self._claim.job_id, error)
            return False
        except FencedOut as error:
            log.warning("final report of %s came too late: %s", self._claim.job_id, error)
            return True

    def close(self) -> None:
        self._closed = True
        self._points.close()
        self._samples.close()
        if self._trainer is not None and self._trainer.poll() is None:
            self._trainer.kill()
        self._background.shutdown(wait=False, cancel_futures=True)

    def _meanwhile(self, transfer: Future[T]) -> T:
        """Keep reporting, which holds the lease, until a transfer is through."""
        while wait([transfer], TICK_SECONDS).not_done:
            self._tick()
        return transfer.result()

    def _tick(self) -> None:
        """One look around: new events, orders, a report when it is due."""
        if self._stopping() and not self._leaving:
            raise Released
        self._look()
        batch, now = self._feed.batch(), time.monotonic()
        eager = bool(batch) and (self._feed.phase in STARTING or self._feed.first_step_waits)
        if now >= self._next_report or (eager and self._answered):
            self._next_report = now + REPORT_SECONDS
            try:
                self._report(batch, None)
            except ServerUnreachable as error:
                log.warning("report of %s waits: %s", self._claim.job_id, error)
        if self._trainer and time.monotonic() > self._last_answer + self._lease * PAUSE_AT:
            self._trainer.pause()
        self._commands.watch(self._trainer)

    def _look(self) -> None:
        """Take in new events, and move uploads forward."""
        self._feed.read()
        self._points.look()
        self._samples.look()
        event = self._feed.next_upload()
        if event is None:
            return
        if self._uploading is None:
            folder = self._run.root / str(event.data["directory"])
            self._uploading = self._background.submit(self._store, folder)
        elif self._uploading.done():
            upload, self._uploading = self._uploading, None
            try:
                event.files = upload.result()
            except FileNotFoundError:  # beyond recipe.save_total_limit before its turn
                event.files = []
            except (ServerUnreachable, ServerRefused, OSError) as error:
                # A checkpoint is a convenience: the run goes on without, and says so.
                log.warning("checkpoint of %s not stored: %s", self._claim.job_id, error)
                event.files, event.level = [], "warn"
                event.message = f"{event.message}, but it could not be stored: {error}"[:4000]

    def _store(self, folder: Path) -> list[StoredFile]:
        stored: list[StoredFile] = []
        for path in sorted(folder.iterdir()):
            self._insist(lambda p=path: stored.append(self._put(p)))  # type: ignore[misc]  # the default binds the loop's value
        return stored

    def _put(self, path: Path) -> StoredFile:
        return self._api.put_blob(self._claim.job_id, self._claim.fence, path)

    def _report(self, events: list[RunEvent], outcome: Outcome | None) -> None:
        claim = self._claim
        report = Report(
            worker_id=self._worker_id,
            attempt=claim.attempt,
            fence=claim.fence,
            phase=self._feed.phase,
            events=events,
            run_report=self._account.news(outcome),
            outcome=outcome,
        )
        sent, self._answered = time.monotonic(), False
        timeout = min(REPORT_TIMEOUT_SECONDS, self._lease * (1 - PAUSE_AT))
        reply = self._api.report(claim.job_id, report, timeout)
        self._answered = True
        self._last_answer, self._lease = sent, reply.lease_seconds
        self._feed.stored(reply.accepted_seq)
        self._account.taken()
        if self._trainer:
            self._trainer.resume()
            self._account.paused_seconds = self._trainer.paused_seconds
        if not self._leaving:
            self._commands.obey(reply.control, self._trainer)
        elif reply.control is Control.CANCEL:
            self._unwanted = True

    def _insist(self, transfer: Callable[[], None]) -> None:
        """Try a transfer until it is through, slower and slower. A server that cannot be reached
        is waited for; one that answers 5xx again and again cannot do it."""
        faults, delay = 0, REPORT_SECONDS
        while True:
            try:
                return transfer()
            except ServerUnreachable as error:
                faults = faults + 1 if isinstance(error, ServerFault) else 0
                if self._closed or faults == MAX_FAULTS:
                    raise
                log.warning("transfer for %s waits: %s", self._claim.job_id, error)
                time.sleep(delay)
                delay = min(MAX_DELAY_SECONDS, delay * 2)
