"""Python without the metadata of tunesmith, as in a source tree that is not installed."""

from __future__ import annotations

from pathlib import Path

_HIDES = """
import importlib.metadata as metadata

_version = metadata.version


def version(name):
    if name == "tunesmith":
        raise metadata.PackageNotFoundError(name)
    return _version(name)


metadata.version = version
"""


def hide_metadata(folder: Path) -> None:
    """Write a sitecustomize.py to `folder`, for processes with `folder` on PYTHONPATH."""
    (folder / "sitecustomize.py").write_text(_HIDES)
