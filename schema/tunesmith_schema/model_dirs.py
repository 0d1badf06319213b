"""Parsing of TUNESMITH_MODEL_DIRS, and warnings about missing folders.

Server and workers use this module. Server and workers start even if a folder is missing, because
the folder may be mounted later.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def named_folders(model_dirs: str) -> list[Path]:
    """Return the folders as absolute paths; relative paths start at the working directory."""
    return [Path(part).expanduser().resolve() for part in model_dirs.split(":") if part]


def missing_folders(folders: Iterable[Path]) -> list[str]:
    """Return a warning for each path that is not a folder."""
    return [
        f"TUNESMITH_MODEL_DIRS names {folder}, which is "
        f"{'not a folder' if folder.exists() else 'missing'}: no base models are read from it"
        for folder in folders
        if not folder.is_dir()
    ]


def why_no_models(folders: list[Path]) -> str:
    """Explain why no base models were found."""
    if not folders:
        return "TUNESMITH_MODEL_DIRS is not set"
    reasons = ", ".join(
        f"{folder} has none" if folder.is_dir() else f"{folder} is missing" for folder in folders
    )
    return f"of the folders in TUNESMITH_MODEL_DIRS, {reasons}"
