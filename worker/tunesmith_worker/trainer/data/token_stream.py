"""Chunks in, batches out, in the file's order: by the trainer itself and by helpers beside it.

What comes out does not depend on how many they are: a chunk gives the same wherever it is
tokenised, and one that a helper could not do, for whatever reason, is done here.
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
from .token_helper import HelperJob, ask

PAYS_SECONDS = 5.0
"""Work that must be left before helpers are started: each takes 1.2 s of a core to start."""
MOST_PROCESSES = 16
"""A helper takes 150 MB."""
_AHEAD = 3
"""Chunks that a helper has before it, so that it need not wait while the trainer does its own."""
PATIENCE_SECONDS = 60.0
PATIENCE_FACTOR = 20.0
"""A helper may take for a chunk so many times what the trainer's slowest took, and never less than
the seconds above, in which it also starts."""
_LOOK_SECONDS = 1.0

Result = tuple[Batch, Counts]


def usable_processes() -> int:
    """Processes that may tokenise at once on this host, the trainer being one."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(MOST_PROCESSES, cores)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is the same for all chunks of a file."""

    tokenizer: Tokenizer
    plan: DataPlan
    name: str
    vocabulary: int

    def do(self, chunk: Chunk) -> Result:
        rows = chunk_rows(chunk, self.name)
        return tokenize(rows, self.tokenizer, self.plan, name=self.name, vocabulary=self.vocabulary)


class TokenStream:
    def __init__(
        self, work: Work, *, processes: int, pays: float = PAYS_SECONDS, warn: Callable[[str], None]
    ) -> None:
        self._work, self._most_helpers, self._pays, self._warn = work, processes - 1, pays, warn
        self._helpers: list[_Helper] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._slowest = 0.0

    @property
    def processes(self) -> int:
        """That took part, the trainer included."""
        return 1 + len(self._helpers)

    def __enter__(self) -> TokenStream:
        return self

    def __exit__(self, *_: object) -> None:
        for helper in self._helpers:
            helper.end()
        if self._folder is not None:
            self._folder.cleanup()

    def results(self, chunks: Iterable[Chunk]) -> Iterator[Result]:
        """Raises what the first chunk raises that cannot be tokenised."""
        began = time.perf_counter()
        waiting: deque[tuple[Chunk, Future[Result | None]]] = deque()
        for chunk in chunks:
            waiting.append((chunk, self._begin(chunk)))
            while waiting and (waiting[0][1].done() or len(waiting) > self._most_waiting):
                yield self._result(*waiting.popleft())
            if not self._helpers and self._most_helpers > 0:
                spent = time.perf_counter() - began
                if spent * (1 / chunk.share - 1) > self._pays:
                    self._start_helpers()
        while waiting:
            yield self._result(*waiting.popleft())

    @property
    def _most_waiting(self) -> int:
        return 2 * _AHEAD * len(self._helpers)

    def _begin(self, chunk: Chunk) -> Future[Result | None]:
        """Give it to the helper with the least to do, or do it now when all have enough."""
        able = [helper for helper in self._helpers if helper.able and helper.ahead < _AHEAD]
        if able and chunk.problem is None:
            return min(able, key=lambda helper: helper.ahead).submit(chunk)
        done: Future[Result | None] = Future()
        try:
            done.set_result(self._do(chunk))
        except Exception as error:  # raised when it is this chunk's turn
            done.set_exception(error)
        return done

    def _result(self, chunk: Chunk, future: Future[Result | None]) -> Result:
        while wait([future], _LOOK_SECONDS).not_done:
            self._end_what_hangs()
        result = future.result()
        self._tell_of_losses()
        return self._do(chunk) if result is None else result

    def _do(self, chunk: Chunk) -> Result:
        began = time.perf_counter()
        result = self._work.do(chunk)
        self._slowest = max(self._slowest, time.perf_counter() - began)
        return result

    def _end_what_hangs(self) -> None:
        """Only looks are counted, not time: a trainer that was paused has paused its helpers."""
        patience = max(PATIENCE_SECONDS, PATIENCE_FACTOR * self._slowest)
        for helper in self._helpers:
            helper.silent += _LOOK_SECONDS if helper.ahead else 0.0
            if helper.able and helper.silent >= patience:
                helper.give_up()

    def _tell_of_losses(self) -> None:
        for helper in self._helpers:
            if not helper.able and not helper.told:
                helper.told = True
                self._warn(
                    f"{self._work.name}: a process that helped to tokenise {helper.loss()}; "
                    "the trainer does its part"
                )

    def _start_helpers(self) -> None:
        count, self._most_helpers = self._most_helpers, 0
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
        except Exception as error:  # no space, no process, whatever: slower, not impossible
            why = f"{type(error).__name__}: {error}"
            self._warn(f"{work.name}: tokenised by {self.processes} processes only: {why}")


class _Helper:
    """One process, and the thread that waits for it."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tunesmith_worker.trainer.data.token_helper", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # In the trainer's group: what pauses, stops or kills the trainer does so with this.
            env={
                **without_secrets(os.environ),
                "HF_HUB_OFFLINE": "1",
                "TOKENIZERS_PARALLELISM": "false",
                "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",  # it would miss torch aloud
                **SpawnSettings(supervisor_pid=os.getpid()).as_environment(),
            },
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokens")
        self.ahead = 0
        self.able = True
        self.told = False
        self.silent = 0.0
        """Seconds that the trainer has waited since it gave an answer."""
        self._hung = False

    def submit(self, chunk: Chunk) -> Future[Result | None]:
        self.ahead += 1
        return self._thread.submit(self._ask, chunk)

    def _ask(self, chunk: Chunk) -> Result | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            return ask(self._process.stdin, self._process.stdout, chunk) if self.able else None
        except (OSError, EOFError, ValueError):
            self.able = False
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            self._process.kill()  # what answers nonsense has not ended by itself
            return None
        finally:
            self.ahead -= 1
            self.silent = 0.0

    def give_up(self) -> None:
        """End it; its thread then finds that no answer comes."""
        self.able, self._hung = False, True
        self._process.kill()

    def loss(self) -> str:
        if self._hung:
            return "gave no answer and was killed"
        status = self._process.wait()
        return f"ended with signal {-status}" if status < 0 else f"ended with status {status}"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.shutdown()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # what was written last was not read
                    pipe.close()
