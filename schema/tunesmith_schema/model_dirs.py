"""TUNESMITH_MODEL_DIRS: the folders that it names, and what to say of those that are not there.

The server and its workers read it alike. A folder may be mounted later: a missing one is no reason
not to start.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def named_folders(model_dirs: str) -> list[Path]:
    """Absolute; a relative part counts from where the process was started."""
    return [Path(part).expanduser().resolve() for part in model_dirs.split(":") if part]


def missing_folders(folders: Iterable[Path]) -> list[str]:
    """One sentence for each that is not a folder."""
    return [
        f"TUNESMITH_MODEL_DIRS names {folder}, which is "
        f"{'not a folder' if folder.exists() else 'not there'}: no base model is found below it"
        for folder in folders
        if not folder.is_dir()
    ]


def why_no_models(folders: list[Path]) -> str:
    """What was looked at in vain."""
    if not folders:
        return "TUNESMITH_MODEL_DIRS is not set"
    looked = ", ".join(
        f"{folder} has none" if folder.is_dir() else f"{folder} is not there" for folder in folders
    )
    return f"of the folders in TUNESMITH_MODEL_DIRS, {looked}"
