"""Installed version of Tunesmith, read from the package metadata."""

from __future__ import annotations

from importlib.metadata import version

__version__ = version("tunesmith")
