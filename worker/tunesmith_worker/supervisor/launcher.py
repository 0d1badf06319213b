"""Where a worker's trainers come from: the spare, if one is kept, else a fresh process.

One spare at most, and never beside a trainer: it is started when a trainer has ended, so that it
costs memory only while the worker is idle.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tunesmith_worker.supervisor.child.spawn import TrainerProgram
from tunesmith_worker.supervisor.child.trainer_process import TrainerProcess
from tunesmith_worker.supervisor.child.warm_trainer import SpareTrainer

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
        self._wanted = settings.spare_trainer
        self._spare: SpareTrainer | None = None

    def keep_spare(self) -> None:
        """See to it that one is there, or on its way; from the main thread, while no trainer runs.

        Without one everything still works.
        """
        if self._spare and self._spare.process.poll() is None:
            return
        self.close()
        if not self._wanted:
            return
        try:
            self._spare = SpareTrainer(self._program, self._cwd)
        except OSError as error:
            log.warning("no spare trainer: %s", error)

    def launch(self, run_dir: Path) -> TrainerProcess:
        spare, self._spare = self._spare, None
        return TrainerProcess(run_dir, self._program, spare)

    def close(self) -> None:
        """End the spare; no trainer runs, so what was left in `tmp` is nobody's."""
        if self._spare:
            self._spare.kill()
            self._spare = None
        if self._program.tmp is not None:
            empty_folder(self._program.tmp)
