"""Build of a Dockerfile stage in a folder without a container runtime. Runs its COPY and RUN lines.

One folder replaces the file systems of all stages. Commands that need root in a Debian image
(apt-get, useradd) are skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from .dockerfile import ROOT, Stage, lineage, read_stages
from .images import SYSTEM_PATH

FOLDERS = ("/home/tunesmith", "/opt/tunesmith", "/project", "/requirements", "/wheels")
"""Absolute paths of the Dockerfile that are mapped into the folder."""
_OPTION = re.compile(r"--mount=\S+\s+")
_IMPOSSIBLE = ("apt-get", "groupadd")


class Build:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._stages = read_stages()
        self._built: set[str] = set()
        # The image's Python: `python` and `pip` in the lines.
        subprocess.run([sys.executable, "-m", "venv", root / "python"], check=True)
        for folder in FOLDERS:
            (root / folder.strip("/")).mkdir(parents=True)
        (root / "opt" / "tunesmith").rmdir()  # place of the virtual environment

    def inside(self, text: str) -> str:
        return re.sub(rf"(?<![\w./-])({'|'.join(FOLDERS)})\b", rf"{self.root}\1", text)

    def stage(self, name: str) -> None:
        """Build a stage after the stages that it copies from."""
        if name in self._built:
            return
        self._built.add(name)
        for part in lineage(self._stages, name):
            self._carry_out(part, installed=name)

    def _carry_out(self, stage: Stage, installed: str) -> None:
        folder = self.root
        for instruction, value in stage.lines:
            for other in re.findall(r"(?<!\w)(?:--)?from=(\w[\w-]*)", value):
                self.stage(other)
            if instruction == "WORKDIR":
                folder = Path(self.inside(value))
            elif instruction == "COPY" and "--from=" not in value:
                *sources, target = value.split()
                for source in sources:
                    self._copy(ROOT / source, folder / self.inside(target))
            elif instruction == "RUN" and not any(word in value for word in _IMPOSSIBLE):
                line = self.inside(_OPTION.sub("", value))
                self._run(line, folder, final=stage.name == installed)

    def _copy(self, source: Path, target: Path) -> None:
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target, ignore=ignore, dirs_exist_ok=True)
        else:
            shutil.copy(source, target)

    def _run(self, line: str, folder: Path, *, final: bool) -> None:
        own = self.root / "opt" / "tunesmith" / "bin" if final else self.root / "python" / "bin"
        path = f"{own}:{self.root / 'python' / 'bin'}:{SYSTEM_PATH}"
        done = subprocess.run(
            ["/bin/sh", "-ec", line],
            cwd=folder,
            env={**_pip_environment(), "PATH": path, "HOME": str(Path.home())},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-1000:]}{done.stderr[-2000:]}"


def _pip_environment() -> dict[str, str]:
    """Return an environment that has only this machine's pip settings. Modules are compiled at
    first import, because compiling all of them takes longer than the rest of the test."""
    ours = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    return ours | {"PIP_NO_COMPILE": "1"}
