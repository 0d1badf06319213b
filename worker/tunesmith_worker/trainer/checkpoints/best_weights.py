"""The best weights so far, as files: `checkpoints/best-step-N`, one such folder at a time.

A resume point takes them along by hard links, so that a run goes on with the best of its own past
even where a later best had replaced it. Knows nothing of metrics.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tunesmith_worker.rundir.paths import move_folder, new_folder

if TYPE_CHECKING:  # it imports torch
    from tunesmith_worker.engine.model.adapters import SavedAdapter

Save = Callable[[Path], "SavedAdapter | None"]
"""Writes the weights that the model has now into a folder, whole or not at all."""

_PREFIX = "best-step-"
_IN_POINT = re.compile(rf"({_PREFIX}\d+)\.(.+)")
"""A file of a folder, in a resume point, which is flat."""


class BestWeights:
    def __init__(self, checkpoints: Path, save: Save) -> None:
        self._checkpoints, self._save = checkpoints, save

    def folder(self, step: int) -> Path:
        return self._checkpoints / f"{_PREFIX}{step}"

    def keep(self, step: int) -> SavedAdapter | None:
        """Save the weights of `step`, then forget those kept before."""
        saved = self._save(self.folder(step))
        _forget(self._checkpoints, but=self.folder(step))
        return saved

    def become(self, step: int, result: Path) -> None:
        """Those of `step` are the run's result."""
        move_folder(self.folder(step), result)


def stage_best(checkpoints: Path, step: int) -> Path:
    """A folder with what is kept now, as the files `best-step-N.FILE` of a resume point at `step`:
    it may be written while a better one comes. No copies where the file system has links."""
    staged = checkpoints / f".best-at-{step}.part"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    for folder in checkpoints.glob(f"{_PREFIX}*"):
        for file in folder.iterdir():
            _link(file, staged / f"{folder.name}.{file.name}")
    return staged


def take_best_from(point: Path, checkpoints: Path) -> None:
    """Keep what the resume point holds, and nothing else. The point has been verified."""
    _forget(checkpoints)
    files = [(match, file) for file in point.iterdir() if (match := _IN_POINT.fullmatch(file.name))]
    for name in {match[1] for match, _ in files}:
        with new_folder(checkpoints / name) as folder:
            for match, file in files:
                if match[1] == name:
                    _link(file, folder / match[2])


def _forget(checkpoints: Path, but: Path | None = None) -> None:
    for folder in checkpoints.glob(f"{_PREFIX}*"):
        if folder != but:
            shutil.rmtree(folder)


def _link(file: Path, name: Path) -> None:
    try:
        os.link(file, name)
    except OSError:  # a file system without hard links
        shutil.copyfile(file, name)
