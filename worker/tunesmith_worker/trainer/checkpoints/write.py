"""Atomic writing of resume points in a thread, and removal of old resume points.

The two newest resume points and the resume points that `recipe.keep_every` selects are kept. The
manifest is written after all other files are synced. After the manifest is written, the folder gets
its final name.
"""

from __future__ import annotations

import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tunesmith_schema.retention import resume_points_to_keep
from tunesmith_worker.rundir import resume_point as names
from tunesmith_worker.rundir.paths import file_hash, new_folder
from tunesmith_worker.rundir.resume_point import (
    FileEntry,
    Manifest,
    RunIdentity,
    list_resume_points,
)

from .best_weights import stage_best_weights
from .state import ResumeState
from .tensors import write_tensors, write_text


@dataclass(frozen=True, kw_only=True)
class WrittenPoint:
    folder: Path
    step: int
    bytes: int
    cpu_seconds: float
    """CPU-seconds of the writing thread."""


class ResumePointWriter:
    """Writes one resume point at a time."""

    def __init__(
        self,
        checkpoints: Path,
        made_for: RunIdentity,
        made_with: dict[str, str],
        keep_every: int | None = None,
    ) -> None:
        self._checkpoints, self._made_for, self._made_with = checkpoints, made_for, made_with
        self._keep_every = keep_every
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="resume-point")
        self._pending: Future[WrittenPoint] | None = None
        self._best: dict[str, FileEntry] = {}
        """Manifest entries of the best weights, whose files do not change."""

    def begin(self, step: int, state: ResumeState, plan: str) -> None:
        """Begin to write a resume point. `state` must not change until `finish` returns the
        result."""
        assert self._pending is None, "call finish first"
        best = stage_best_weights(self._checkpoints, step)
        self._pending = self._thread.submit(self._write, step, state, plan, best)

    @property
    def busy(self) -> bool:
        return self._pending is not None

    def finish(self, *, wait: bool) -> WrittenPoint | None:
        """Return the result of a finished write; None if no write has finished.

        Raises the errors of the writing thread, such as OSError for a full disk.
        """
        if self._pending is None or not (wait or self._pending.done()):
            return None
        pending, self._pending = self._pending, None
        return pending.result()

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    def _write(self, step: int, state: ResumeState, plan: str, best: Path) -> WrittenPoint:
        began = time.thread_time()
        path = self._checkpoints / f"{names.PREFIX}{step}"
        with new_folder(path) as folder:
            files = {
                name: write_tensors(folder / name, tensors)
                for name, tensors in state.tensors.items()
            }
            texts = state.texts | {names.PLAN: plan}
            files |= {name: write_text(folder / name, text) for name, text in texts.items()}
            files |= self._best_into(folder, best)
            manifest = Manifest(
                step=step, made_for=self._made_for, made_with=self._made_with, files=files
            )
            write_text(folder / names.MANIFEST, manifest.model_dump_json(indent=1))
        best.rmdir()
        points = {
            names.resume_step(point): point for point in list_resume_points(self._checkpoints)
        }
        steps = [step for step in points if step is not None]
        for older in points.keys() - resume_points_to_keep(steps, self._keep_every):
            shutil.rmtree(points[older], ignore_errors=True)
        return WrittenPoint(
            folder=path,
            step=step,
            bytes=sum(entry.bytes for entry in files.values()),
            cpu_seconds=time.thread_time() - began,
        )

    def _best_into(self, folder: Path, best: Path) -> dict[str, FileEntry]:
        entries = {}
        for file in best.iterdir():
            if file.name not in self._best:
                self._best[file.name] = FileEntry(bytes=file.stat().st_size, sha256=file_hash(file))
            file.replace(folder / file.name)
            entries[file.name] = self._best[file.name]
        self._best = entries
        return entries
