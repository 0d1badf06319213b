"""The folder in which a worker's trainers put temporary files, so that none outlives them.

In the system's own temporary directory: sockets are made there too, whose paths must be short.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

_NAME = re.compile(r"tunesmith-trainer-(\d+)-")


def new_temporary_folder() -> Path:
    """This worker's; removes those of workers that were killed."""
    for path in Path(tempfile.gettempdir()).iterdir():
        found = _NAME.match(path.name)
        if found and not Path("/proc", found[1]).exists():
            shutil.rmtree(path, ignore_errors=True)  # another user's stays
    return Path(tempfile.mkdtemp(prefix=f"tunesmith-trainer-{os.getpid()}-"))


def empty(folder: Path) -> None:
    """Remove what is in it; no trainer runs."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
