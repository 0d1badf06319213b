"""A warm trainer's own end: import what a run needs, then wait for a run directory."""

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
)
"""What `run.train` imports. One that is missing here is imported by the run, as in a fresh one."""


@dataclass(frozen=True, kw_only=True)
class AcceptedRun:
    run_dir: Path
    waited: StartDelay


def wait_for_run() -> AcceptedRun | None:
    """The child's end: import, wait, take. None: the supervisor has gone, or code has changed."""
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
        given = HandOver(**json.loads(line))
        if changed := [path for path in program if _is_new(path, program[path], began)]:
            sys.stdout.write(f"{changed[0]} has changed since this trainer imported it\n")
            return None
        run_dir = Path(given.run_dir)
        if _is_quantized(run_dir):
            sys.stdout.write("a quantised base model needs what a warm trainer leaves out\n")
            return None
        _write_on(run_dir / "trainer.log")
        os.chdir(run_dir)
        supervisor.sendall(TAKEN)
    imports = max(0.0, ready - given.at)
    spawn = max(0.0, time.monotonic() - given.at - imports)
    return AcceptedRun(run_dir=run_dir, waited=StartDelay(spawn=spawn, imports=imports))


def _is_quantized(run_dir: Path) -> bool:
    """Whether the run needs bitsandbytes, which peft looks for once, when it is imported."""
    try:
        spec = read_spec(run_dir)
    except UnusableRunDirectory:  # whoever takes the run says why
        return False
    return spec.recipe.quantization != "none"


Stamp = tuple[int, int, int]
"""ctime in ns (no installer sets it back, as it does mtime), size, inode; zeros: no such file."""


def stamps() -> dict[str, Stamp]:
    """The files that this process's program came from. 10 ms for 3,700 modules."""
    specs = [getattr(module, "__dict__", {}).get("__spec__") for module in sys.modules.values()]
    files = [spec.origin for spec in specs if isinstance(spec, ModuleSpec) and spec.has_location]
    return {path: _stamp(path) for path in (sys.executable, *files) if path is not None}


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0, 0
    return found.st_ctime_ns, found.st_size, found.st_ino


def _is_new(path: str, stamp: Stamp, began: float) -> bool:
    """Written or removed after `began`, unix seconds: an upgrade must not run on half of the old
    program. The second comparison still holds when the clock has been set back."""
    return stamp[0] > began * 1e9 or _stamp(path) != stamp


def _write_on(log: Path) -> None:
    """From here on this process reads nothing and writes to `log`, which begins with what its
    imports have printed."""
    sys.stdout.flush()
    sys.stderr.flush()
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.write(output, os.pread(1, os.fstat(1).st_size, 0))
    for old, new in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(old, new)
    os.close(output)
    os.close(nothing)
