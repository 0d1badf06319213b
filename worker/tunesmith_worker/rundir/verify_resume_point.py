"""Is a resume point whole: every file there, with the bytes that were written. Does not import
torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from .paths import file_hash
from .resume_point import FORMAT, MANIFEST, PREFIX, Manifest, list_resume_points, resume_step


class DamagedResumePoint(Exception):
    """Not a whole resume point; says which file, and what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class ValidResumePoint:
    folder: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        return self.manifest.step


def verify(folder: Path) -> ValidResumePoint:
    """Reads every byte. Raises DamagedResumePoint."""
    path = folder / MANIFEST
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise DamagedResumePoint(f"it has no {MANIFEST}") from error
    except OSError as error:
        raise DamagedResumePoint(f"{MANIFEST} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"] == ("format",):
            raise DamagedResumePoint(
                f"another version wrote it: its format is not {FORMAT}"
            ) from error
        raise DamagedResumePoint(f"{MANIFEST} is damaged: {first['msg']}") from error
    if manifest.step != resume_step(folder):
        raise DamagedResumePoint(f"{MANIFEST} is that of step {manifest.step}")
    for name, entry in manifest.files.items():
        _check(folder / name, entry.bytes, entry.sha256)
    return ValidResumePoint(folder=folder, manifest=manifest)


def newest_valid(checkpoints: Path, refused: Callable[[str, str], None]) -> ValidResumePoint | None:
    """`refused(name, why)` hears of each damaged one that is newer; half-written ones too."""
    for part in sorted(checkpoints.glob(f".{PREFIX}*.part")):
        refused(part.name, "it was being written when the run ended")
    for folder in list_resume_points(checkpoints):
        try:
            return verify(folder)
        except DamagedResumePoint as error:
            refused(folder.name, str(error))
    return None


def _check(path: Path, size: int, sha256: str) -> None:
    try:
        found = path.stat().st_size
        if found != size:
            raise DamagedResumePoint(f"{path.name} has {found:,} bytes instead of {size:,}")
        if file_hash(path) != sha256:
            raise DamagedResumePoint(f"{path.name} is not what was written: its sha256 differs")
    except OSError as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
        raise DamagedResumePoint(f"{path.name} {what}") from error
