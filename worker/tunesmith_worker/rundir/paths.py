"""Paths in a run directory, and atomic writes of files and folders."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

KEEP_SECONDS = 14 * 24 * 3600.0
"""Age in seconds at which unused run directories and cached files are removed."""

EVALUATION = "evaluation.json"


@dataclass(frozen=True)
class RunDirectory:
    root: Path

    @property
    def spec(self) -> Path:
        return self.root / "spec.json"

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def control(self) -> Path:
        return self.root / "control.json"

    @property
    def result(self) -> Path:
        return self.root / "result.json"

    @property
    def report(self) -> Path:
        return self.root / "report.json"

    @property
    def evaluation(self) -> Path:
        return self.root / EVALUATION

    @property
    def adapter(self) -> Path:
        return self.root / "adapter"

    @property
    def progress(self) -> Path:
        """File that the trainer touches when the run advances (see rundir/progress.py)."""
        return self.root / "progress"

    def remove_outcome(self) -> None:
        """Remove the result, report and evaluation of an earlier run, so that a killed run leaves
        no old result."""
        for path in (self.result, self.report, self.evaluation):
            path.unlink(missing_ok=True)

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step}"

    @property
    def samples(self) -> Path:
        return self.root / "samples"

    @property
    def rollouts(self) -> Path:
        """File with the completions generated so far for the current step."""
        return self.root / "rollouts.jsonl"

    def relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def write_json(path: Path, value: BaseModel) -> None:
    """Replace `path` atomically: a reader sees either the old or the new content."""
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(value.model_dump_json(indent=1))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    _sync_folder(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder to fill; after all its files are on disk, rename the folder to `path`."""
    part = path.with_name(f".{path.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    yield part
    for file in part.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    _sync_folder(part)
    move_folder(part, path)


def move_folder(path: Path, to: Path) -> None:
    """Rename a folder within the run directory, and sync the change to disk."""
    if to.exists():  # an earlier attempt left this folder
        shutil.rmtree(to)
    path.replace(to)
    _sync_folder(to.parent)


def remove_unfinished(root: Path) -> None:
    """Remove unfinished files that `write_json`, `new_folder` and downloads left below `root`."""
    for part in list(root.rglob(".*.part")):
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)


def remove_unused(folders: Path, older_than: float) -> None:
    """Remove folders that have not changed for `older_than` seconds."""
    limit = time.time() - older_than
    for folder in folders.iterdir():
        # Another worker may rename or remove a shared folder at the same time.
        with contextlib.suppress(FileNotFoundError):
            times = [path.lstat().st_mtime for path in (folder, *folder.rglob("*"))]
            if max(times) < limit:
                shutil.rmtree(folder, ignore_errors=True)


def file_hash(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
