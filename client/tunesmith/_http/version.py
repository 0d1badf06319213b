"""The installed version, from the distribution's metadata."""

from __future__ import annotations

from importlib.metadata import version

__version__ = version("tunesmith")
