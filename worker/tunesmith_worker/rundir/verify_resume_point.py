"""Verify a resume point: all files must exist with the manifest's sizes and hashes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from tunesmith_schema.documents import read_file

from .errors import error_text
from .paths import file_hash
from .resume_point import FORMAT, MANIFEST, PREFIX, Manifest, list_resume_points, resume_step


class DamagedResumePoint(Exception):
    """Raised if a resume point fails verification. The error message names the file and the
    reason."""


@dataclass(frozen=True, kw_only=True)
class ValidResumePoint:
    folder: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        return self.manifest.step


def verify(folder: Path) -> ValidResumePoint:
    """Verify the hash of every file. Raises DamagedResumePoint if a file is damaged or missing."""
    path = folder / MANIFEST
    try:
        manifest = read_file(Manifest, path.read_bytes())
    except FileNotFoundError as error:
        raise DamagedResumePoint(f"{MANIFEST} is missing") from error
    except OSError as error:
        raise DamagedResumePoint(f"cannot read {MANIFEST}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"] == ("format",):
            raise DamagedResumePoint(
                f"written by another version: the format is not {FORMAT}"
            ) from error
        raise DamagedResumePoint(f"{MANIFEST} is damaged: {first['msg']}") from error
    if manifest.step != resume_step(folder):
        raise DamagedResumePoint(f"{MANIFEST} is for another step: {manifest.step}")
    for name, entry in manifest.files.items():
        _check(folder / name, entry.bytes, entry.sha256)
    return ValidResumePoint(folder=folder, manifest=manifest)


def newest_valid(checkpoints: Path, refused: Callable[[str, str], None]) -> ValidResumePoint | None:
    """Return the newest valid resume point.

    Calls `refused(name, reason)` for each newer resume point that is damaged or incomplete."""
    for part in sorted(checkpoints.glob(f".{PREFIX}*.part")):
        refused(part.name, "incomplete: the run ended while writing it")
    for folder in list_resume_points(checkpoints):
        try:
            return verify(folder)
        except DamagedResumePoint as error:
            refused(folder.name, str(error))
    return None


def _check(path: Path, size: int, sha256: str) -> None:
    try:
        actual = path.stat().st_size
        if actual != size:
            raise DamagedResumePoint(f"{path.name} has {actual:,} bytes instead of {size:,}")
        if file_hash(path) != sha256:
            raise DamagedResumePoint(f"{path.name} was changed: its sha256 differs")
    except OSError as error:
        raise DamagedResumePoint(error_text(error)) from error
