"""Installed version of Tunesmith, read from the package metadata."""

from __future__ import annotations

from tunesmith_schema.versions import installed_version

__version__ = installed_version("tunesmith")
