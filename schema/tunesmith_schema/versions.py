"""Versions of installed packages."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

UNINSTALLED = "uninstalled"


@cache
def installed_version(package: str) -> str:
    """Return the version of an installed package, or UNINSTALLED. The result is cached.

    A package that is imported from a folder on PYTHONPATH without installation has no version."""
    try:
        return version(package)
    except PackageNotFoundError:
        return UNINSTALLED
