"""The warm trainer: imports what a run needs, then waits for a run directory."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path

from tunesmith_worker.rundir.hand_over import READY, TAKEN, HandOver
from tunesmith_worker.rundir.process import StartDelay, quick_imports
from tunesmith_worker.rundir.spec import UnusableRunDirectory, read_spec

ENGINE = (
    "tunesmith_worker.trainer.load",
    "tunesmith_worker.trainer.assemble_grpo",
    "tunesmith_worker.trainer.rewards.local",
    "tunesmith_worker.trainer.assemble_sft",
    "tunesmith_worker.trainer.evaluate_run",
    "tunesmith_worker.trainer.read_back",
)
"""Modules that `run.train` imports. If this list lacks a module, the run itself imports that
module."""


@dataclass(frozen=True, kw_only=True)
class AcceptedRun:
    """A run directory received from the supervisor."""

    run_dir: Path
    waited: StartDelay


def wait_for_run() -> AcceptedRun | None:
    """Import the modules, then wait for a run and accept it.

    Return None if the supervisor has ended, the code has changed or the base model is quantised."""
    began = time.time()
    with quick_imports():
        for name in ENGINE:
            import_module(name)
    ready, program = time.monotonic(), stamps()
    with socket.socket(fileno=os.dup(0)) as supervisor:
        supervisor.sendall(READY)
        line = supervisor.makefile("rb").readline()
        if not line:
            return None
        hand_over = HandOver(**json.loads(line))
        if changed := [path for path in program if _is_new(path, program[path], began)]:
            sys.stdout.write(f"{changed[0]} has changed since this trainer imported it\n")
            return None
        run_dir = Path(hand_over.run_dir)
        if _is_quantized(run_dir):
            sys.stdout.write(
                "a quantised base model needs bitsandbytes, which a warm trainer does not import\n"
            )
            return None
        _redirect_to(run_dir / "trainer.log")
        os.chdir(run_dir)
        supervisor.sendall(TAKEN)
    imports = max(0.0, ready - hand_over.at)
    spawn = max(0.0, time.monotonic() - hand_over.at - imports)
    return AcceptedRun(run_dir=run_dir, waited=StartDelay(spawn=spawn, imports=imports))


def _is_quantized(run_dir: Path) -> bool:
    """Return True if the run needs bitsandbytes."""
    try:
        spec = read_spec(run_dir)
    except UnusableRunDirectory:  # if the spec is invalid, the run itself reports it
        return False
    return spec.recipe.quantization != "none"


Stamp = tuple[int, int, int]
"""A file's ctime in ns, size and inode; zeros if the file does not exist.

ctime is used instead of mtime, because package installers reset a file's mtime.
"""


def stamps() -> dict[str, Stamp]:
    """Return the stamp of each imported file, in about 10 ms for 3,700 modules."""
    specs = [getattr(module, "__dict__", {}).get("__spec__") for module in sys.modules.values()]
    files = [spec.origin for spec in specs if isinstance(spec, ModuleSpec) and spec.has_location]
    return {path: _stamp(path) for path in (sys.executable, *files) if path is not None}


def _stamp(path: str) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0, 0
    return status.st_ctime_ns, status.st_size, status.st_ino


def _is_new(path: str, stamp: Stamp, began: float) -> bool:
    """Return True if a file changed after `began` (Unix seconds).

    A run must not mix two versions of the code. The file's time stamp is also compared with the
    saved stamp, because the clock may have been set back.
    """
    return stamp[0] > began * 1e9 or _stamp(path) != stamp


def _redirect_to(log: Path) -> None:
    """Copy the output so far to `log`, redirect stdout and stderr there, and close stdin."""
    sys.stdout.flush()
    sys.stderr.flush()
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.write(output, os.pread(1, os.fstat(1).st_size, 0))
    for old, new in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(old, new)
    os.close(output)
    os.close(nothing)
