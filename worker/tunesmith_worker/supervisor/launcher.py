"""Where a worker's trainers come from: the warm trainer, if one is kept, else a fresh process.

At most one warm trainer, never beside a trainer: it starts when a trainer has ended, so that it
costs memory only while the worker is idle.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tunesmith_worker.supervisor.child.spawn import TrainerProgram
from tunesmith_worker.supervisor.child.trainer_process import TrainerProcess
from tunesmith_worker.supervisor.child.warm_trainer import WarmTrainer

from .cleanup import empty_folder
from .settings import WorkerSettings

log = logging.getLogger(__name__)


class Launcher:
    def __init__(self, settings: WorkerSettings, tmp: Path | None = None) -> None:
        """Starts nothing: a pool forks after this. `tmp`: the trainers' own temporary folder."""
        self._program = TrainerProgram(
            python=settings.trainer_python,
            token_cache=settings.token_cache,
            compile_cache=settings.compile_cache,
            tmp=tmp,
        )
        self._cwd = settings.data_dir
        self._wanted = settings.warm_trainer
        self._warm: WarmTrainer | None = None

    def keep_warm_trainer(self) -> None:
        """See to it that one is there, or on its way; from the main thread, while no trainer runs.

        Without one everything still works.
        """
        if self._warm and self._warm.process.poll() is None:
            return
        self.close()
        if not self._wanted:
            return
        try:
            self._warm = WarmTrainer(self._program, self._cwd)
        except OSError as error:
            log.warning("no warm trainer: %s", error)

    def launch(self, run_dir: Path) -> TrainerProcess:
        warm, self._warm = self._warm, None
        return TrainerProcess(run_dir, self._program, warm)

    def close(self) -> None:
        """End the warm trainer; no trainer runs, so what was left in `tmp` is nobody's."""
        if self._warm:
            self._warm.kill()
            self._warm = None
        if self._program.tmp is not None:
            empty_folder(self._program.tmp)
