"""Parent process of the GPU benchmarks. This module does not import torch.

The parent process starts child processes ahead of time and reads their answers. If a case raises an
error, hangs or ends its process, the failure is recorded and later cases run in a new process.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from .record import Record

ROOT = Path(__file__).parents[2]
SOURCES = ("kernels", "schema", "worker")
ALL = "all of it"
"""Placeholder for cases that a process has not reported yet."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Cases that run in the same child process."""

    part: str
    module: str
    cases: tuple[str, ...] = ()
    """Names of the cases. If `cases` is empty, all cases of the module run, and the child reports
    their names."""
    seconds: float
    """Time limit of one case. When the time is over, the child process is killed."""


class Child:
    """One process. The child process starts its imports when this object is created."""

    def __init__(self, job: Job, environment: Mapping[str, str]) -> None:
        self.job = job
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed in close()
        command = [sys.executable, "-P", "-m", job.module]
        command += ["--cases", *job.cases] if job.cases else []
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=with_sources(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def go(self) -> None:
        assert self._process.stdin is not None
        # If the child ended during its imports, answer() returns None.
        with suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write("go\n")

    def answer(self, seconds: float) -> dict[str, Any] | None:  # Any: JSON
        """Return the next answer, or None if the child has ended. Raises TimeoutError."""
        try:
            line = self._lines.get(timeout=max(0.0, seconds))
        except queue.Empty:
            raise TimeoutError from None
        return None if line is None else dict(json.loads(line))

    def close(self) -> str:
        """End the process. Return the child's exit status and the end of its stderr."""
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reader.join()
        self._errors.seek(0)
        output = self._errors.read().decode(errors="replace")
        self._errors.close()
        sys.stderr.write(output)
        tail = " | ".join(line.strip() for line in output.splitlines()[-6:])
        return f"exit status {self._process.returncode}: {without_paths(tail)[-600:]}"

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)


def run_all(
    jobs: Sequence[Job], record: Record, deadline: float, environment: Mapping[str, str]
) -> None:
    """Run all jobs in order. While a job runs, the process of the next job starts. `deadline` is a
    time.monotonic() value; cases that have not started by then are recorded as skipped."""
    ahead = Child(jobs[0], environment) if jobs else None
    for index, job in enumerate(jobs):
        child = ahead
        assert child is not None
        ahead = Child(jobs[index + 1], environment) if index + 1 < len(jobs) else None
        remaining = _run(child, record, deadline)
        while remaining and time.monotonic() < deadline:
            remaining = _run(Child(replace(job, cases=remaining), environment), record, deadline)
        for case in remaining:
            record.skip(job.part, case)
        if time.monotonic() >= deadline:
            if ahead is not None:
                ahead.kill()
            for later in jobs[index + 1 :]:
                for case in later.cases or (ALL,):
                    record.skip(later.part, case)
            return


def _run(child: Child, record: Record, deadline: float) -> tuple[str, ...]:
    """Read a child's answers until it ends. Return the cases that did not run."""
    job, remaining = child.job, list(child.job.cases) or [ALL]
    child.go()
    begun = time.monotonic()
    while remaining:
        limit = min(begun + job.seconds, deadline) - time.monotonic()
        try:
            answer = child.answer(limit)
        except TimeoutError:
            child.kill()
            if time.monotonic() < deadline:
                record.fail(job.part, remaining.pop(0), f"took more than {job.seconds:g} s")
            return tuple(remaining)
        if answer is None:
            record.fail(job.part, remaining.pop(0), f"process ended, {child.close()}")
            return tuple(remaining)
        if "facts" in answer:
            record.add_facts(answer["facts"])
            remaining = answer["cases"]
        else:
            _record(answer, record, job.part, time.monotonic() - begun)
            remaining.remove(answer["case"])
        begun = time.monotonic()
    child.close()
    return ()


def _record(answer: dict[str, Any], record: Record, part: str, seconds: float) -> None:
    if "error" in answer:
        record.fail(part, answer["case"], answer["error"])
    else:
        record.add(part, answer["case"], answer["result"], seconds)


def with_sources(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment`, changed so that a child process can import this repository's
    packages."""
    paths = [str(ROOT), *(str(ROOT / name) for name in SOURCES)]
    if environment.get("PYTHONPATH"):
        paths.append(environment["PYTHONPATH"])
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}


def without_paths(text: str) -> str:
    """Replace the paths of this machine's folders by short names, because results are published."""
    for folder, name in ((str(ROOT), "."), (sys.prefix, "python"), (str(Path.home()), "~")):
        text = text.replace(folder, name)
    return text
