"""The body of the train task: claim a job, run its trainer, carry its events, obey the server.

MAIN PATH of the worker: `supervise` top to bottom. Holds the lease by reporting; knows nothing of
training and never imports torch.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from tunesmith_schema import (
    Claim,
    Control,
    ControlAction,
    ControlFile,
    ErrorCategory,
    ErrorCode,
    EventKind,
    JobFailure,
    Outcome,
    Report,
    RunEvent,
    RunResult,
    RunSpec,
    StoredFile,
)

from . import base_models
from .errors import disk_full, is_disk_full
from .event_feed import EventFeed
from .events import EventLog
from .folders import RunDirectory, write_json
from .server_api import FencedOut, ServerApi, ServerUnreachable
from .settings import WorkerSettings
from .trainer_process import TrainerProcess

log = logging.getLogger(__name__)

TICK_SECONDS = 0.1
REPORT_SECONDS = 1.0
CANCEL_GRACE_SECONDS = 2.0
"""A cancelled trainer saves nothing, so it needs no longer."""
RELEASE_GRACE_SECONDS = 8.0
"""A trainer asked to go may finish its step and write a checkpoint."""

REPORT_TIMEOUT_SECONDS = 20.0
PAUSE_AT = 0.75
"""Share of the lease that may pass without an answer before the trainer is paused. A report waits
for its answer no longer than the rest, so that the pause comes in time even if the server hangs."""

DATA_SUFFIXES = frozenset({".jsonl", ".json", ".parquet", ".csv"})
"""What a data file's name may keep; a file without is recognised by its content."""

T = TypeVar("T")
P = ParamSpec("P")


class Cancelled(Exception):
    """The server wants the job stopped."""


class Released(Exception):
    """This worker is shutting down."""


def supervise(
    settings: WorkerSettings, api: ServerApi, worker_id: str, stopping: Callable[[], bool]
) -> bool:
    """Claim one job and see it through; False when there was none."""
    asked = time.perf_counter()
    claim = api.claim(worker_id)
    if claim is None:
        return False
    log.info("claimed %s, attempt %d, fence %d", claim.job_id, claim.attempt, claim.fence)
    job = _Job(settings, api, worker_id, claim, stopping)
    try:
        job.prepare(claim_seconds=time.perf_counter() - asked)
        job.spawn()
        outcome = job.watch()
        job.finish(outcome)
    except Cancelled:
        job.stop_trainer(CANCEL_GRACE_SECONDS, cancel=True)
        job.finish(Outcome(state="cancelled"))
    except Released:
        job.stop_trainer(RELEASE_GRACE_SECONDS, cancel=False)
        job.finish(Outcome(state="released"))
    except FencedOut as error:
        log.warning("lost the lease: %s", error)
    except Exception as error:  # whatever it is, the user must learn that the job is not running
        log.exception("supervising %s failed", claim.job_id)
        job.stop_trainer(0.0, cancel=True)
        job.finish(Outcome(state="failed", error=_failure_of(error)))
    finally:
        job.close()
    return True


class _Job:
    """One claimed job on this host."""

    def __init__(
        self,
        settings: WorkerSettings,
        api: ServerApi,
        worker_id: str,
        claim: Claim,
        stopping: Callable[[], bool],
    ) -> None:
        self._settings, self._api, self._worker_id = settings, api, worker_id
        self._claim, self._stopping = claim, stopping
        root = settings.data_dir / "runs" / claim.job_id / f"attempt-{claim.attempt}"
        self._run = RunDirectory(root)
        self._feed = EventFeed(self._run.events)
        self._background = ThreadPoolExecutor(1, thread_name_prefix="transfer")
        self._trainer: TrainerProcess | None = None
        self._last_answer = time.monotonic()
        self._next_report = 0.0
        self._lease = claim.lease_seconds
        self._uploading: Future[list[StoredFile]] | None = None
        self._finishing = self._closed = False

    def prepare(self, *, claim_seconds: float) -> None:
        """Write spec.json and fetch what it names, holding the lease meanwhile."""
        claim = self._claim
        self._run.root.mkdir(parents=True)
        events = EventLog(self._run.events)
        seconds = round(claim.queued_seconds + claim_seconds, 3)
        events.append(
            EventKind.PHASE, f"claim took {seconds:.2f} s", {"phase": "claim", "seconds": seconds}
        )
        (self._run.root / "data").mkdir()
        (self._run.root / "checkpoints").mkdir()
        with events.phase("download"):
            spec = self._meanwhile(self._background.submit(self._fetch))
        write_json(self._run.spec, spec)

    def _fetch(self) -> RunSpec:
        claim = self._claim
        names = {}
        for role, file in (("train", claim.training_file), ("valid", claim.validation_file)):
            if file is not None:
                suffix = Path(file.filename).suffix.lower()
                names[role] = f"data/{role}{suffix if suffix in DATA_SUFFIXES else ''}"
                target = self._run.root / names[role]
                self._insist(self._api.fetch_file, file.file_id, file.sha256, target)
        return RunSpec(
            job_id=claim.job_id,
            attempt=claim.attempt,
            model=claim.model,
            model_path=self._fetch_base_model(),
            training_file=names["train"],
            validation_file=names.get("valid"),
            recipe=claim.recipe,
            hyperparameters=claim.hyperparameters,
            seed=claim.seed,
        )

    def _fetch_base_model(self) -> str:
        """Folder of a model that was trained here, from the cache if it is there; else its name."""
        claim = self._claim
        if claim.base_files is None:
            return base_models.resolve(self._settings, claim.model)
        name = claim.model.replace(":", "_")
        folder = self._settings.data_dir / "models" / name
        for file in claim.base_files:
            target = folder / file.name
            if not (target.is_file() and target.stat().st_size == file.bytes):
                folder.mkdir(parents=True, exist_ok=True)
                self._insist(self._api.fetch_base_file, claim.job_id, claim.fence, file, target)
        return str(folder)

    def spawn(self) -> None:
        self._trainer = TrainerProcess(self._run.root, self._settings.trainer_python)

    def watch(self) -> Outcome:
        """Until the trainer has ended and everything it made is stored."""
        trainer = self._trainer
        assert trainer is not None, "spawn comes first"
        while trainer.poll() is None:
            self._tick()
        if not self._run.result.is_file():
            return Outcome(state="failed", error=trainer.why_it_ended())
        result = RunResult.model_validate_json(self._run.result.read_bytes())
        if result.outcome == "failed":
            return Outcome(state="failed", error=result.error, step=result.step)
        if result.outcome == "stopped":
            log.warning("the trainer of %s stopped without our asking", self._claim.job_id)
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

    def _store(self, folder: Path) -> list[StoredFile]:
        put, claim = self._api.put_blob, self._claim
        return [
            self._insist(put, claim.job_id, claim.fence, path) for path in sorted(folder.iterdir())
        ]

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
            time.sleep(0.02)
        self._trainer.kill()

    def finish(self, outcome: Outcome) -> None:
        """Have the server store every remaining event, then the outcome."""
        self._finishing = True
        if outcome.state in ("cancelled", "released"):
            self._feed.abandon_uploads()
        while True:
            try:
                self._look()
                batch = self._feed.batch()
                whole = len(batch) == len(self._feed)
                self._report(batch, outcome if whole else None)
                if whole:
                    break
            except ServerUnreachable as error:
                log.warning("final report of %s waits: %s", self._claim.job_id, error)
                if self._stopping():
                    log.warning("leaving: the lease of %s will lapse", self._claim.job_id)
                    return
                time.sleep(REPORT_SECONDS)
            except FencedOut as error:
                log.warning("final report of %s came too late: %s", self._claim.job_id, error)
                return
            time.sleep(TICK_SECONDS)
        full = outcome.error is not None and outcome.error.code == ErrorCode.DISK_FULL
        if outcome.state != "failed" or full:
            # What remains (spec, plan, events, log) is small; the rest is stored elsewhere.
            for name in ("data", "checkpoints", "adapter"):
                shutil.rmtree(self._run.root / name, ignore_errors=True)

    def close(self) -> None:
        self._closed = True
        if self._trainer is not None and self._trainer.poll() is None:
            self._trainer.kill()
        self._background.shutdown(wait=False, cancel_futures=True)

    def _meanwhile(self, transfer: Future[T]) -> T:
        """Keep reporting, which holds the lease, until a transfer is through."""
        while not transfer.done():
            self._tick()
        return transfer.result()

    def _tick(self) -> None:
        """One look around: new events, orders, a report when it is due."""
        time.sleep(TICK_SECONDS)
        if self._stopping():
            raise Released
        self._look()
        now = time.monotonic()
        # While a job starts somebody is watching: tell each part as it ends.
        starting = len(self._feed) > 0 and self._feed.phase != "train"
        if now >= self._next_report or starting or self._feed.first_step_waits:
            self._next_report = now + REPORT_SECONDS
            try:
                self._report(self._feed.batch(), None)
            except ServerUnreachable as error:
                log.warning("report of %s waits: %s", self._claim.job_id, error)
        if self._trainer and time.monotonic() > self._last_answer + self._lease * PAUSE_AT:
            self._trainer.pause()

    def _look(self) -> None:
        """Take in new events, and move the upload of the next checkpoint forward."""
        self._feed.read()
        event = self._feed.next_upload()
        if event is None:
            return
        if self._uploading is None:
            folder = self._run.root / str(event.data["directory"])
            self._uploading = self._background.submit(self._store, folder)
        elif self._uploading.done():
            event.files = self._uploading.result()
            self._uploading = None

    def _report(self, events: list[RunEvent], outcome: Outcome | None) -> None:
        claim = self._claim
        report = Report(
            worker_id=self._worker_id,
            attempt=claim.attempt,
            fence=claim.fence,
            phase=self._feed.phase,
            events=events,
            outcome=outcome,
        )
        sent = time.monotonic()
        timeout = min(REPORT_TIMEOUT_SECONDS, self._lease * (1 - PAUSE_AT))
        reply = self._api.report(claim.job_id, report, timeout)
        self._last_answer, self._lease = sent, reply.lease_seconds
        self._feed.stored(reply.accepted_seq)
        if self._trainer:
            self._trainer.resume()
        if reply.control is Control.CANCEL and not self._finishing:
            raise Cancelled

    def _insist(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call until the server can be reached, or the job is over."""
        while True:
            try:
                return call(*args, **kwargs)
            except ServerUnreachable as error:
                if self._closed:
                    raise
                log.warning("transfer for %s waits: %s", self._claim.job_id, error)
                time.sleep(REPORT_SECONDS)


def _failure_of(error: Exception) -> JobFailure:
    if is_disk_full(error):
        return disk_full(str(error))
    return JobFailure(
        category=ErrorCategory.INFRASTRUCTURE,
        code=ErrorCode.INTERNAL,
        message=f"the worker could not run the job: {type(error).__name__}: {error}"[:4000],
        hint="see the worker's log",
    )
