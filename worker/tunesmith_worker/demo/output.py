"""The demo's output directory: ours is known by a marker file, and nobody else's is touched."""

from __future__ import annotations

import shutil
from pathlib import Path

MARKER = ".tunesmith-demo"
OURS = ("service", "architecture", "models", "data", "adapter", "grpo-adapter")
"""Folders that a demo makes, and the next one replaces."""
OUR_FILES = ("loss.png", "reward.png", "summary.md", "summary.json", "service.log")


class OutputRefused(ValueError):
    """The directory holds something that is not a demo's."""


def prepare_output(folder: Path) -> Path:
    """An empty place to write to. An earlier demo's content goes; other files there stay."""
    folder = folder.expanduser().resolve()
    if folder.exists() and not folder.is_dir():
        raise OutputRefused(f"{folder} is a file: name a directory with --output")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARKER).is_file():
        raise OutputRefused(
            f"{folder} is not empty and not an earlier demo's: name another directory with --output"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text("made by `tunesmith demo`, which may replace it\n")
    for name in OURS:
        if (folder / name).is_symlink():
            (folder / name).unlink()
        elif (folder / name).exists():
            shutil.rmtree(folder / name)
    for name in OUR_FILES:
        (folder / name).unlink(missing_ok=True)
    return folder
