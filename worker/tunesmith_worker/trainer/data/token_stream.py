"""Tokenisation of a data file in chunks, by the trainer and by helper processes.

The results are in the file's order and do not depend on the number of processes. If a helper fails,
the trainer tokenises the failed chunk.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from tunesmith_worker.rundir.paths import write_json
from tunesmith_worker.rundir.plan import DataPlan
from tunesmith_worker.rundir.process import SpawnSettings, without_secrets

from .chat import Tokenizer
from .chunks import Chunk, chunk_rows
from .examples import Batch, Counts, tokenize
from .token_cache import tokenizer_hash
from .token_helper import HelperJob, request_tokens

HELPERS_MIN_SECONDS = 5.0
"""Minimum seconds of remaining work; with less work, no helpers are started. Starting a helper
takes 1.2 CPU-seconds."""
MAX_PROCESSES = 16
"""Maximum number of processes. Each helper takes 150 MB of memory."""
_MAX_PENDING = 3
"""Maximum number of chunks queued at each helper, so that helpers do not wait for the trainer."""
PATIENCE_SECONDS = 60.0
PATIENCE_FACTOR = 20.0
"""Maximum time that a helper may take for a reply, as a multiple of the trainer's own time for the
slowest chunk.

A helper is killed only if its reply also takes longer than PATIENCE_SECONDS. The time of the first
reply includes the start of the helper."""
_POLL_SECONDS = 1.0

Result = tuple[Batch, Counts]


def usable_processes() -> int:
    """Return the number of processes that may tokenise on this host, including the trainer."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(MAX_PROCESSES, cores)


@dataclass(frozen=True, kw_only=True)
class Work:
    """Settings of the tokenisation, the same for all chunks of a file."""

    tokenizer: Tokenizer
    plan: DataPlan
    name: str
    vocabulary: int

    def tokenize(self, chunk: Chunk) -> Result:
        rows = chunk_rows(chunk, self.name)
        return tokenize(rows, self.tokenizer, self.plan, name=self.name, vocabulary=self.vocabulary)


class TokenStream:
    def __init__(
        self,
        work: Work,
        *,
        processes: int,
        helpers_min_seconds: float = HELPERS_MIN_SECONDS,
        warn: Callable[[str], None],
    ) -> None:
        self._work, self._max_helpers, self._helpers_min_seconds, self._warn = (
            work,
            processes - 1,
            helpers_min_seconds,
            warn,
        )
        self._helpers: list[_Helper] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._slowest = 0.0

    @property
    def processes(self) -> int:
        """Number of processes: the trainer, and all helpers that were started."""
        return 1 + len(self._helpers)

    def __enter__(self) -> TokenStream:
        return self

    def __exit__(self, *_: object) -> None:
        for helper in self._helpers:
            helper.end()
        if self._folder is not None:
            self._folder.cleanup()

    def results(self, chunks: Iterable[Chunk]) -> Iterator[Result]:
        """Yield the result of each chunk. Raises the error of the first failed chunk."""
        began = time.perf_counter()
        waiting: deque[tuple[Chunk, Future[Result | None]]] = deque()
        for chunk in chunks:
            waiting.append((chunk, self._submit(chunk)))
            while waiting and (waiting[0][1].done() or len(waiting) > self._max_waiting):
                yield self._result(*waiting.popleft())
            if not self._helpers and self._max_helpers > 0:
                spent = time.perf_counter() - began
                if spent * (1 / chunk.share - 1) > self._helpers_min_seconds:
                    self._start_helpers()
        while waiting:
            yield self._result(*waiting.popleft())

    @property
    def _max_waiting(self) -> int:
        return 2 * _MAX_PENDING * len(self._helpers)

    def _submit(self, chunk: Chunk) -> Future[Result | None]:
        free = [
            helper for helper in self._helpers if helper.usable and helper.pending < _MAX_PENDING
        ]
        if free and chunk.problem is None:
            return min(free, key=lambda helper: helper.pending).submit(chunk)
        done: Future[Result | None] = Future()
        try:
            done.set_result(self._tokenize(chunk))
        except Exception as error:  # raised when this chunk's result is read
            done.set_exception(error)
        return done

    def _result(self, chunk: Chunk, future: Future[Result | None]) -> Result:
        while wait([future], _POLL_SECONDS).not_done:
            self._kill_hung_helpers()
        result = future.result()
        self._report_lost_helpers()
        return self._tokenize(chunk) if result is None else result

    def _tokenize(self, chunk: Chunk) -> Result:
        began = time.perf_counter()
        result = self._work.tokenize(chunk)
        self._slowest = max(self._slowest, time.perf_counter() - began)
        return result

    def _kill_hung_helpers(self) -> None:
        """Kill helpers that do not reply in time. Each call adds `_POLL_SECONDS` to the waiting
        time of a busy helper; a clock would also count pauses of the whole process."""
        patience = max(PATIENCE_SECONDS, PATIENCE_FACTOR * self._slowest)
        for helper in self._helpers:
            helper.silent += _POLL_SECONDS if helper.pending else 0.0
            if helper.usable and helper.silent >= patience:
                helper.give_up()

    def _report_lost_helpers(self) -> None:
        for helper in self._helpers:
            if not helper.usable and not helper.reported:
                helper.reported = True
                self._warn(
                    f"{self._work.name}: a tokenising helper process {helper.end_reason()}; "
                    "the trainer does the helper's work"
                )

    def _start_helpers(self) -> None:
        count, self._max_helpers = self._max_helpers, 0
        self._folder = tempfile.TemporaryDirectory(prefix="tunesmith-")
        folder, work = Path(self._folder.name), self._work
        try:
            work.tokenizer.save_pretrained(folder)
            job = HelperJob(
                name=work.name,
                vocabulary=work.vocabulary,
                max_seq_length=work.plan.max_seq_length,
                overlong=work.plan.overlong,
                assistant_only_loss=work.plan.assistant_only_loss,
                tokenizer=tokenizer_hash(work.tokenizer),
            )
            write_json(folder / "job.json", job)
            for _ in range(count):
                self._helpers.append(_Helper(folder))
        except Exception as error:  # no disk space, no process, ...: continue without helpers
            reason = f"{type(error).__name__}: {error}"
            processes = f"{self.processes} process{'es' if self.processes > 1 else ''}"
            self._warn(f"{work.name}: tokenised by only {processes}: {reason}")


class _Helper:
    """Helper process, and the thread that waits for its replies."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tunesmith_worker.trainer.data.token_helper", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Same process group as the trainer, so that signals reach both.
            env={
                **without_secrets(os.environ),
                "HF_HUB_OFFLINE": "1",
                "TOKENIZERS_PARALLELISM": "false",
                "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",  # no warning about missing torch
                **SpawnSettings(supervisor_pid=os.getpid()).as_environment(),
            },
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokens")
        self.pending = 0
        self.usable = True
        self.reported = False
        self.silent = 0.0
        """Seconds that the trainer has waited since the last reply."""
        self._hung = False

    def submit(self, chunk: Chunk) -> Future[Result | None]:
        self.pending += 1
        return self._thread.submit(self._request, chunk)

    def _request(self, chunk: Chunk) -> Result | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            return (
                request_tokens(self._process.stdin, self._process.stdout, chunk)
                if self.usable
                else None
            )
        except (OSError, EOFError, ValueError):
            self.usable = False
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            self._process.kill()  # the helper may still be running after an invalid reply
            return None
        finally:
            self.pending -= 1
            self.silent = 0.0

    def give_up(self) -> None:
        """Kill the process; the thread that reads its replies then ends."""
        self.usable, self._hung = False, True
        self._process.kill()

    def end_reason(self) -> str:
        if self._hung:
            return "did not reply and was killed"
        status = self._process.wait()
        return f"ended with signal {-status}" if status < 0 else f"ended with status {status}"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.shutdown()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # the helper did not read the last write
                    pipe.close()
