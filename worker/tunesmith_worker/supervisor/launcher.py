"""Start runs: in the warm trainer if one exists, otherwise in a fresh trainer process.

A warm trainer is a trainer process that does its imports before it gets a run. The worker keeps at
most one warm trainer. A warm trainer starts only when no other trainer runs, so only an idle worker
uses memory for a warm trainer.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from tunesmith_worker.supervisor.child.spawn import EVALUATION_MODULE, TrainerProgram
from tunesmith_worker.supervisor.child.trainer_process import TrainerProcess
from tunesmith_worker.supervisor.child.warm_trainer import WarmTrainer

from .cleanup import empty_folder
from .settings import WorkerSettings

log = logging.getLogger(__name__)


class Launcher:
    def __init__(self, settings: WorkerSettings, tmp: Path | None = None) -> None:
        """`tmp`: temporary folder of trainers.

        The constructor runs before the pool forks, so it must not start a process."""
        self._program = TrainerProgram(
            python=settings.trainer_python,
            token_cache=settings.token_cache,
            compile_cache=settings.compile_cache,
            rollout_url=settings.rollout_url,
            rollout_token=settings.rollout_token.get_secret_value(),
            tmp=tmp,
        )
        self._cwd = settings.data_dir
        self._enabled = settings.warm_trainer
        self._warm: WarmTrainer | None = None

    def keep_warm_trainer(self) -> None:
        """Start a warm trainer unless one is running.

        Must be called from the main thread while no trainer runs.

        A failure is only logged, because the next trainer can start in a fresh process.
        """
        if self._warm and self._warm.process.poll() is None:
            return
        self.close()
        if not self._enabled:
            return
        try:
            self._warm = WarmTrainer(self._program, self._cwd)
        except OSError as error:
            log.warning("cannot start a warm trainer: %s", error)

    def launch(self, run_dir: Path) -> TrainerProcess:
        warm, self._warm = self._warm, None
        return TrainerProcess(run_dir, self._program, warm)

    def launch_evaluation(self, folder: Path) -> TrainerProcess:
        """Start an evaluation on demand, in a fresh process.

        The warm trainer is killed first, to free memory.
        """
        self.close()
        return TrainerProcess(folder, replace(self._program, module=EVALUATION_MODULE))

    def close(self) -> None:
        """Kill the warm trainer and empty `tmp`. Must be called while no trainer runs."""
        if self._warm:
            self._warm.kill()
            self._warm = None
        if self._program.tmp is not None:
            empty_folder(self._program.tmp)
