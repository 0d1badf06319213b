"""Evaluations on demand: a worker runs one evaluation at a time, between two training jobs.

If the worker is killed, its child process ends too, and a worker repeats the evaluation after the
lease has expired."""

from __future__ import annotations

import logging
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tunesmith_schema import (
    ErrorCategory,
    ErrorCode,
    Evaluation,
    JobFailure,
)
from tunesmith_schema.evaluations import (
    ClaimedModel,
    EvaluationClaim,
    EvaluationLease,
    EvaluationOutcome,
)
from tunesmith_worker.rundir.errors import RunError, error_text
from tunesmith_worker.rundir.evaluation_spec import FAILURE, EvaluationSpec, ModelFolders
from tunesmith_worker.rundir.paths import RunDirectory, write_json
from tunesmith_worker.supervisor import base_models
from tunesmith_worker.supervisor.child.trainer_process import TrainerProcess
from tunesmith_worker.supervisor.cleanup import end_processes
from tunesmith_worker.supervisor.device_health import DeviceHealth
from tunesmith_worker.supervisor.downloads.fetch import cached_model, data_name
from tunesmith_worker.supervisor.launcher import Launcher
from tunesmith_worker.supervisor.server_api import (
    FencedOut,
    ServerApi,
    ServerFault,
    ServerRefused,
    ServerUnreachable,
)
from tunesmith_worker.supervisor.settings import WorkerSettings

from .renewal import LeaseRenewal

log = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
"""Interval of lease renewals in seconds; a cancelled evaluation ends within this time."""
MAX_SECONDS = 3600.0
"""Maximum duration of the evaluating process in seconds.

Measurements take up to 600 s; the remaining time is for loading.
"""
POLL_SECONDS = 0.1
END_SECONDS = 2.0
_TRIES, _AGAIN_SECONDS = 30, 2.0


class Interrupted(Exception):
    """Raised if the evaluation was cancelled or given to another worker, or if this worker shuts
    down."""


def evaluate_next(
    settings: WorkerSettings,
    api: ServerApi,
    worker_id: str,
    stop_requested: Callable[[], bool],
    launcher: Launcher,
    health: DeviceHealth,
) -> bool:
    """Claim and run one evaluation; return False if no evaluation waits or the host is not ready.

    Must be called from the main thread, because `TrainerProgram.spawn` requires this."""
    if not health.is_ready():
        return False
    claim = api.claim_evaluation(worker_id)
    if claim is None:
        return False
    health.job_claimed()
    log.info("claimed %s, claim %d", claim.evaluation_id, claim.fence)
    lease = EvaluationLease(worker_id=worker_id, fence=claim.fence)
    run = _Run(settings, api, claim, lease, launcher, stop_requested)

    def renew() -> float:
        return api.renew_evaluation(claim.evaluation_id, lease).lease_seconds

    try:
        with LeaseRenewal(
            renew, claim.lease_seconds, claim.evaluation_id, every=BEAT_SECONDS
        ) as renewal:
            outcome = run.outcome(renewal.is_lost)
            if not renewal.is_lost():
                _send(api, claim.evaluation_id, outcome, renewal.is_lost)
    finally:
        run.end()
        health.watch_run(run.root, None)
        if stop_requested():
            launcher.close()
        else:
            launcher.keep_warm_trainer()
    return True


class _Run:
    def __init__(
        self,
        settings: WorkerSettings,
        api: ServerApi,
        claim: EvaluationClaim,
        lease: EvaluationLease,
        launcher: Launcher,
        stop_requested: Callable[[], bool],
    ) -> None:
        self.root = settings.run_dir(claim.evaluation_id, claim.fence)
        self._settings, self._api, self._claim, self._lease = settings, api, claim, lease
        self._launcher, self._stop_requested = launcher, stop_requested
        self._process: TrainerProcess | None = None

    def outcome(self, is_lost: Callable[[], bool]) -> EvaluationOutcome:
        def check() -> None:
            if is_lost() or self._stop_requested():
                raise Interrupted

        try:
            self._prepare(check)
            self._process = process = self._launcher.launch_evaluation(self.root)
            deadline = time.monotonic() + MAX_SECONDS
            while process.poll() is None:
                check()
                if time.monotonic() > deadline:
                    return self._failed(_too_slow())
                time.sleep(POLL_SECONDS)
        except Interrupted:
            return self._ended("released")
        except Exception as error:  # tell the user about any failure
            log.exception("%s failed", self._claim.evaluation_id)
            return self._failed(_failure_of(error))
        return self._read_result(process)

    def end(self) -> None:
        """Kill the process and remove the inputs. After a failure, the log stays."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        end_processes(self.root, self._process.pid if self._process else None, END_SECONDS)
        if (self.root / "evaluation.json").is_file():
            shutil.rmtree(self.root, ignore_errors=True)
        else:
            shutil.rmtree(self.root / "data", ignore_errors=True)

    def _prepare(self, check: Callable[[], None]) -> None:
        (self.root / "data").mkdir(parents=True)
        retry = partial(_retry, check)
        file = self._claim.file
        name = f"data/{data_name('rows', file.filename)}"
        retry(partial(self._api.fetch_file, file.file_id, file.sha256, self.root / name))
        against = self._claim.against
        spec = EvaluationSpec(
            model=self._folders(self._claim.model, "model", retry),
            against=None if against is None else self._folders(against, "against", retry),
            file=name,
            file_name=file.filename,
            on=self._claim.on,
            grader=self._claim.grader,
            losses=self._claim.losses,
        )
        write_json(RunDirectory(self.root).spec, spec)

    def _folders(
        self, model: ClaimedModel, param: str, retry: Callable[[Callable[[], None]], None]
    ) -> ModelFolders:
        fetch = partial(self._api.fetch_evaluated_file, self._claim)
        if model.base_files is not None:
            base = str(cached_model(self._settings, model.base, model.base_files, fetch, retry))
        else:
            base = base_models.resolve(self._settings, model.base)
            try:
                base_models.check_base_model(model.base, Path(base), from_scratch=False)
            except RunError as error:
                error.failure.param = param
                raise
        adapter = None
        if model.adapter_files is not None:
            files = model.adapter_files
            adapter = str(cached_model(self._settings, model.name, files, fetch, retry))
        return ModelFolders(name=model.name, base=base, adapter=adapter)

    def _read_result(self, process: TrainerProcess) -> EvaluationOutcome:
        result, failure = RunDirectory(self.root).evaluation, self.root / FAILURE
        if result.is_file():
            evaluation = Evaluation.model_validate_json(result.read_bytes())
            return EvaluationOutcome(
                **self._lease.model_dump(), state="succeeded", result=evaluation
            )
        if failure.is_file():
            return self._failed(JobFailure.model_validate_json(failure.read_bytes()))
        diagnosis = process.diagnose_exit()
        if process.poll() == -signal.SIGKILL:
            return self._ended("crashed", diagnosis)
        return self._failed(diagnosis)

    def _failed(self, error: JobFailure) -> EvaluationOutcome:
        return self._ended("failed", error)

    def _ended(self, state: str, error: JobFailure | None = None) -> EvaluationOutcome:
        fields = {**self._lease.model_dump(), "state": state, "error": error}
        return EvaluationOutcome.model_validate(fields)


def _retry(check: Callable[[], None], transfer: Callable[[], None]) -> None:
    """Repeat a transfer until it succeeds; give up after `_TRIES` faulty answers of the server."""
    faults = 0
    while True:
        check()
        try:
            return transfer()
        except ServerUnreachable as error:
            faults += isinstance(error, ServerFault)
            if faults == _TRIES:
                raise
            log.warning("transfer delayed: %s", error)
            time.sleep(_AGAIN_SECONDS)


def _send(
    api: ServerApi, evaluation_id: str, outcome: EvaluationOutcome, is_lost: Callable[[], bool]
) -> None:
    for _ in range(_TRIES):
        try:
            api.end_evaluation(evaluation_id, outcome)
            log.info("%s: %s", evaluation_id, outcome.state)
            return
        except ServerUnreachable as error:
            log.warning("outcome of %s not sent yet: %s", evaluation_id, error)
            if is_lost():
                return
            time.sleep(_AGAIN_SECONDS)
        except (FencedOut, ServerRefused) as error:
            log.warning("the outcome of %s is refused: %s", evaluation_id, error)
            return


def _too_slow() -> JobFailure:
    return JobFailure(
        category=ErrorCategory.INFRASTRUCTURE,
        code=ErrorCode.TRAINER_STALLED,
        message=f"the evaluation took longer than {MAX_SECONDS:.0f} s",
        hint="use a smaller model, or a worker with a GPU",
    )


def _failure_of(error: Exception) -> JobFailure:
    if isinstance(error, RunError):
        return error.failure
    return JobFailure(
        category=ErrorCategory.INFRASTRUCTURE,
        code=ErrorCode.INTERNAL,
        message=f"the worker failed to run the evaluation: {type(error).__name__}: "
        f"{error_text(error)}"[:4000],
        hint="see the worker's log",
    )
