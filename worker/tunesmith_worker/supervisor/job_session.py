"""Hold one claimed job: send reports, which renew the lease, and obey the server's commands.

Transfers run in a separate thread, so that the main thread can continue to report.
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
    JobFailure,
    Outcome,
    Report,
    RunEvent,
    RunResult,
    StoredFile,
)
from tunesmith_worker.rundir.errors import error_text
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.rundir.paths import RunDirectory, remove_unfinished, write_json
from tunesmith_worker.supervisor.child.trainer_process import TrainerProcess
from tunesmith_worker.supervisor.downloads.fetch import fetch_inputs
from tunesmith_worker.supervisor.downloads.fetch_resume_points import clean_run_directory

from .attempt_report import AttemptReport
from .event_reader import EventReader
from .launcher import Launcher
from .server_api import (
    ContentMissing,
    FencedOut,
    ServerApi,
    ServerRefused,
    ServerUnreachable,
)
from .server_commands import Released, ServerCommands
from .settings import WorkerSettings
from .uploads import ResumePointUploads, SampleUploads, Transfers
from .watchdog import Watchdog, record_stall

log = logging.getLogger(__name__)

TICK_SECONDS = 0.1
REPORT_SECONDS = 1.0
REPORT_TIMEOUT_SECONDS = 20.0
PAUSE_AT = 0.75
"""The trainer is paused if the server has not answered for this share of the lease's duration.

A report's timeout is the remaining time of the lease, so that the trainer pauses in time even if
the server hangs.
"""
STARTING = frozenset({"download", "spawn", "import", "load", "data"})
"""Phases whose end is reported immediately, because users watch the start of a job."""
MAX_OUTPUT_LOSSES = 3
"""Number of times that a job's output is uploaded again because the store has lost the output."""
SHUTDOWN_STORE_SECONDS, STORE_SECONDS = 15.0, 600.0
"""Maximum seconds to store the newest resume point of a job that ends early. SHUTDOWN_STORE_SECONDS
applies at a shutdown, STORE_SECONDS in all other cases."""

T = TypeVar("T")


class JobSession:
    def __init__(
        self,
        settings: WorkerSettings,
        api: ServerApi,
        worker_id: str,
        claim: Claim,
        stop_requested: Callable[[], bool],
        launcher: Launcher,
        stop_now: Callable[[], bool] = lambda: False,
    ) -> None:
        """`stop_now`: function that returns True if the trainer must not finish its step."""
        self._launcher, self._stop_now = launcher, stop_now
        self._settings, self._api, self._worker_id = settings, api, worker_id
        self._claim, self._stop_requested = claim, stop_requested
        self._run = RunDirectory(settings.run_dir(claim.job_id, claim.attempt))
        self._commands = ServerCommands(self._run)
        self._reader = EventReader(self._run.events)
        self._attempt_report = AttemptReport(self._run.report, claim, self._reader.phases)
        self._transfers = Transfers(api, claim)
        self._background = ThreadPoolExecutor(1, thread_name_prefix="transfer")
        self._trainer: TrainerProcess | None = None
        self._last_answer = time.monotonic()
        self._next_report = 0.0
        self._lease = claim.lease_seconds
        self._uploading: Future[list[StoredFile]] | None = None
        self._points = ResumePointUploads(
            self._run, self._reader, self._transfers.store, claim.recipe.keep_every
        )
        self._samples = SampleUploads(self._run, self._reader, self._transfers.store)
        self._answered = True
        self._ending = False
        self._release_by = math.inf
        self._fenced_out = False
        """True if the server refused the final report, because another attempt has the job."""
        self._cancelled = False
        """True if the server cancelled the job while the trainer was ending.

        The session then does not wait for uploads.
        """
        self._output: Path | None = None
        """Folder with the output files of a successful run."""
        self._output_losses = 0

    def prepare(self, *, claim_seconds: float) -> None:
        """Fetch the inputs and write spec.json, while reports renew the lease."""
        self._attempt_report.claimed(claim_seconds)
        for folder in ("data", "checkpoints"):
            (self._run.root / folder).mkdir(parents=True)
        events = EventLog(self._run.events)
        seconds = round(self._claim.queued_seconds + claim_seconds, 3)
        queued = f"queued {seconds:.0f} s" if seconds >= 10 else f"queued {seconds:.2f} s"
        events.append(EventKind.PHASE, queued, {"phase": "claim", "seconds": seconds})
        with events.phase("download"):
            spec = self._report_during(
                self._background.submit(
                    fetch_inputs,
                    self._settings,
                    self._api,
                    self._claim,
                    self._run.root,
                    self._transfers.retry,
                    events,
                )
            )
        write_json(self._run.spec, spec)
        earlier = self._run.root.with_name(f"attempt-{self._claim.attempt - 1}") / "plan.json"
        if earlier.is_file():  # the last attempt ran on this host, so reuse its choices
            shutil.copyfile(earlier, self._run.plan)

    def spawn(self) -> None:
        self._attempt_report.trainer_spawned()
        self._trainer = self._launcher.launch(self._run.root)

    def watch(self) -> Outcome:
        """Wait until the trainer has ended and its outputs are stored; return the outcome."""
        trainer = self._trainer
        assert trainer is not None, "spawn comes first"
        watchdog = Watchdog(self._run)
        while trainer.poll() is None:
            time.sleep(TICK_SECONDS)
            self._tick()
            if not self._commands.pausing and (
                failure := watchdog.stalled(
                    trainer, self._reader.phase, stepped=self._reader.stepped
                )
            ):
                return self._stop_stalled(trainer, failure)
        self._launcher.keep_warm_trainer()  # imports run while outputs are uploaded
        return self._outcome(trainer)

    def _stop_stalled(self, trainer: TrainerProcess, failure: JobFailure) -> Outcome:
        """Stop a trainer that makes no progress; return the outcome of the attempt."""
        log.warning("%s: %s", self._claim.job_id, failure.message)
        self._ending = True
        self.stop_trainer(self._settings.release_seconds, cancel=False)
        record_stall(self._run, failure)
        if self._run.result.is_file():  # SIGTERM ended the run, or it was about to end
            outcome = self._outcome(trainer)
            if outcome.state != "released":
                return outcome
        return Outcome(state="failed", error=failure)

    def release(self, grace_seconds: float) -> Outcome:
        """Stop the trainer after its current step, and return the outcome.

        The outcome is `released`, unless the run has finished and written a result."""
        self._ending, self._release_by = True, time.monotonic() + grace_seconds
        self.stop_trainer(grace_seconds, cancel=False)
        if self._trainer is None or not self._run.result.is_file():
            return Outcome(state="released")
        return self._outcome(self._trainer)

    def _outcome(self, trainer: TrainerProcess) -> Outcome:
        self._attempt_report.trainer_ended()
        if not self._run.result.is_file():
            if self._commands.ended_by_pause(trainer.poll()):
                return Outcome(state="released")
            return Outcome(state="failed", error=trainer.diagnose_exit())
        result = RunResult.model_validate_json(self._run.result.read_bytes())
        if result.outcome == "failed":
            return Outcome(state="failed", error=result.error, step=result.step)
        if result.outcome == "stopped":
            return Outcome(state="released")
        assert result.directory is not None, "a successful run has a result directory"
        self._output = self._run.root / result.directory
        return Outcome(
            state="succeeded",
            kind=result.kind,
            step=result.step,
            trained_tokens=result.trained_tokens,
            files=self._store_output(),
        )

    def _store_output(self) -> list[StoredFile]:
        assert self._output is not None, "a success has an output folder"
        return self._report_during(self._background.submit(self._transfers.store, self._output))

    def stop_trainer(self, grace_seconds: float, *, cancel: bool) -> None:
        """Send SIGTERM, wait up to `grace_seconds`, then send SIGKILL.

        With `cancel`, the trainer saves nothing."""
        if self._trainer is None:
            return
        if cancel:
            with contextlib.suppress(OSError):  # if the disk is full, SIGKILL ends the trainer
                write_json(self._run.control, ControlFile(action=ControlAction.CANCEL))
        self._trainer.ask_to_stop()
        deadline = time.monotonic() + grace_seconds
        while self._trainer.poll() is None and time.monotonic() < deadline:
            if self._stop_now() or self._cancelled:
                break
            self._report_while_ending()
            time.sleep(0.02)
        self._trainer.kill()
        self._attempt_report.trainer_ended()

    def finish(self, outcome: Outcome) -> bool:
        """Report the remaining events, then the outcome; return True if the server has
        everything."""
        self._ending = True
        if outcome.state == "cancelled":
            self._reader.abandon_uploads()
        if outcome.state in ("released", "failed"):
            self._store_newest_point()
        self._points.close()
        while not self._send_final_report(outcome := self._final_outcome(outcome)):
            if time.monotonic() > self._release_by or self._stop_now() or self._cancelled:
                self._reader.abandon_uploads()
            if self._stop_requested() and not self._answered:
                log.warning("shutdown: the outcome of %s is reported later", self._claim.job_id)
                return False
            time.sleep(TICK_SECONDS if self._answered else REPORT_SECONDS)
        full = outcome.error is not None and outcome.error.code == ErrorCode.DISK_FULL
        # No report that names the adapter has reached the server, so no other copy exists.
        unreported = self._fenced_out and outcome.state == "succeeded"
        if (outcome.state != "failed" or full) and not unreported:
            clean_run_directory(self._run.root, outcome)
        remove_unfinished(self._run.root)  # a killed trainer may leave files with user data
        return True

    def _final_outcome(self, outcome: Outcome) -> Outcome:
        released = outcome.state == "released"
        return Outcome(state="cancelled") if released and self._cancelled else outcome

    def _store_newest_point(self) -> None:
        """Wait for the upload of the newest resume point, so that any host can continue the job."""
        seconds = SHUTDOWN_STORE_SECONDS if self._stop_requested() else STORE_SECONDS
        deadline = time.monotonic() + seconds
        self._collect()
        while self._points.busy and time.monotonic() < min(deadline, self._release_by):
            if self._stop_now() or self._cancelled:
                return
            time.sleep(TICK_SECONDS)
            self._tick()

    def forget_events(self) -> None:
        self._reader.clear()

    @property
    def trainer_pid(self) -> int | None:
        """Process id of the trainer (and id of its session); None if no trainer was started."""
        return None if self._trainer is None else self._trainer.pid

    def _report_while_ending(self) -> None:
        """Renew the lease and report new events while the trainer ends."""
        if self._ending and time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + REPORT_SECONDS
            try:
                self._collect()
                self._report(self._reader.batch(), None)
            except ServerUnreachable as error:
                log.warning("report of %s delayed: %s", self._claim.job_id, error)

    def _send_final_report(self, outcome: Outcome) -> bool:
        """Try once to send the final report; return True if everything is reported."""
        try:
            self._collect()
            batch = self._reader.batch()
            is_complete = len(batch) == len(self._reader)
            self._report(batch, outcome if is_complete else None)
            return is_complete
        except ServerUnreachable as error:
            log.warning("final report of %s delayed: %s", self._claim.job_id, error)
            return False
        except ContentMissing as error:
            self._output_losses += 1
            if self._output is None or self._output_losses > MAX_OUTPUT_LOSSES:
                raise
            log.warning("final report of %s: %s: uploading again", self._claim.job_id, error)
            outcome.files = self._store_output()
            return False
        except FencedOut as error:
            log.warning("final report of %s came too late: %s", self._claim.job_id, error)
            self._fenced_out = True
            return True

    def close(self) -> None:
        self._transfers.close()
        self._points.close()
        self._samples.close()
        if self._trainer is not None and self._trainer.poll() is None:
            self._trainer.kill()
        self._background.shutdown(wait=False, cancel_futures=True)

    def _report_during(self, transfer: Future[T]) -> T:
        """Send reports, which renew the lease, until a transfer has ended; return the transfer's
        result."""
        while wait([transfer], TICK_SECONDS).not_done:
            self._tick()
        return transfer.result()

    def _tick(self) -> None:
        if self._stop_requested() and not self._ending:
            raise Released
        self._collect()
        batch, now = self._reader.batch(), time.monotonic()
        eager = bool(batch) and (self._reader.phase in STARTING or self._reader.first_step_pending)
        if now >= self._next_report or (eager and self._answered):
            self._next_report = now + REPORT_SECONDS
            try:
                self._report(batch, None)
            except ServerUnreachable as error:
                log.warning("report of %s delayed: %s", self._claim.job_id, error)
        if self._trainer and time.monotonic() > self._last_answer + self._lease * PAUSE_AT:
            self._trainer.pause()
        self._commands.watch(self._trainer)

    def _collect(self) -> None:
        self._reader.read()
        self._points.update()
        self._samples.update()
        event = self._reader.next_upload()
        if event is None:
            return
        if self._uploading is None:
            folder = self._run.root / str(event.data["directory"])
            self._uploading = self._background.submit(self._transfers.store, folder)
        elif self._uploading.done():
            upload, self._uploading = self._uploading, None
            try:
                event.files = upload.result()
            except FileNotFoundError:  # removed early, due to recipe.save_total_limit
                event.files = []
            except (ServerUnreachable, ServerRefused, OSError) as error:
                # The run continues without the checkpoint, with a warning.
                log.warning("checkpoint of %s not stored: %s", self._claim.job_id, error)
                event.files, event.level = [], "warn"
                event.message = f"{event.message}, but it was not stored: {error_text(error)}"[
                    :4000
                ]

    def _report(self, events: list[RunEvent], outcome: Outcome | None) -> None:
        claim = self._claim
        report = Report(
            worker_id=self._worker_id,
            attempt=claim.attempt,
            fence=claim.fence,
            phase=self._reader.phase,
            events=events,
            run_report=self._attempt_report.unsent(outcome),
            outcome=outcome,
        )
        sent, self._answered = time.monotonic(), False
        timeout = min(REPORT_TIMEOUT_SECONDS, self._lease * (1 - PAUSE_AT))
        reply = self._api.report(claim.job_id, report, timeout)
        self._answered = True
        self._last_answer, self._lease = sent, reply.lease_seconds
        self._reader.confirm(reply.accepted_seq)
        self._attempt_report.mark_sent()
        if self._trainer:
            self._trainer.resume()
            self._attempt_report.paused_seconds = self._trainer.paused_seconds
        if not self._ending:
            self._commands.obey(reply.control, self._trainer)
        elif reply.control is Control.CANCEL:
            self._cancelled = True
