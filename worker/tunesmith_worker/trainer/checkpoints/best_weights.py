"""The best weights so far, in the folder `checkpoints/best-step-N`.

Each resume point has hard links to the weights that were best when the resume point was saved. A
resumed run restores the best weights from the hard links. Better weights that the interrupted
attempt found after the resume point are removed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tunesmith_worker.rundir.paths import move_folder, new_folder

if TYPE_CHECKING:  # for types only, because this import loads torch
    from tunesmith_worker.engine.model.adapters import SavedWeights

Save = Callable[[Path], "SavedWeights"]
"""Function that writes the model's current weights into a folder, atomically."""

_PREFIX = "best-step-"
_IN_POINT = re.compile(rf"({_PREFIX}\d+)\.(.+)")
"""Name of a best-weights file inside a resume point. The file name contains the step, because a
resume point has no subfolders."""


class BestWeights:
    def __init__(self, checkpoints: Path, save: Save) -> None:
        self._checkpoints, self._save = checkpoints, save

    def folder(self, step: int) -> Path:
        return self._checkpoints / f"{_PREFIX}{step}"

    def keep(self, step: int) -> SavedWeights:
        """Save the weights of `step`, then remove earlier best weights."""
        saved = self._save(self.folder(step))
        _remove(self._checkpoints, but=self.folder(step))
        return saved

    def move_to(self, step: int, result: Path) -> None:
        """Move the weights of `step` to the run's result folder."""
        move_folder(self.folder(step), result)


def stage_best_weights(checkpoints: Path, step: int) -> Path:
    """Create and return a folder of hard links `best-step-N.FILE` for the resume point of `step`.

    The hard links are needed because better weights may replace the original files before the
    resume point is written. On file systems without hard links, the files are copied.
    """
    staged = checkpoints / f".best-at-{step}.part"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    for folder in checkpoints.glob(f"{_PREFIX}*"):
        for file in folder.iterdir():
            _link(file, staged / f"{folder.name}.{file.name}")
    return staged


def restore_best_weights(point: Path, checkpoints: Path) -> None:
    """Replace the kept best weights with the best weights in a verified resume point."""
    _remove(checkpoints)
    files = [(match, file) for file in point.iterdir() if (match := _IN_POINT.fullmatch(file.name))]
    for name in {match[1] for match, _ in files}:
        with new_folder(checkpoints / name) as folder:
            for match, file in files:
                if match[1] == name:
                    _link(file, folder / match[2])


def _remove(checkpoints: Path, but: Path | None = None) -> None:
    for folder in checkpoints.glob(f"{_PREFIX}*"):
        if folder != but:
            shutil.rmtree(folder)


def _link(file: Path, name: Path) -> None:
    try:
        os.link(file, name)
    except OSError:  # the file system has no hard links
        shutil.copyfile(file, name)
