"""Where a base model's name leads on this host. Does not load anything."""

from __future__ import annotations

from pathlib import Path

from .settings import WorkerSettings


def names(settings: WorkerSettings) -> list[str]:
    """Folder names of the models below the allowed directories."""
    found = {
        entry.name
        for directory in settings.base_model_folders()
        if directory.is_dir()
        for entry in directory.iterdir()
        if (entry / "config.json").is_file()
    }
    return sorted(found)


def resolve(settings: WorkerSettings, name: str) -> str:
    """The folder that `name` means below an allowed directory, else `name` itself: a hub id."""
    for directory in settings.base_model_folders():
        # A direct child may be a link: who made it there allowed where it leads.
        if name == Path(name).name and (directory / name / "config.json").is_file():
            return str(directory / name)
        path: Path = (directory / name).resolve()
        if path.is_relative_to(directory) and (path / "config.json").is_file():
            return str(path)
    return name
