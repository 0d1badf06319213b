"""Thread of the engine: accepts requests, computes steps and delivers outputs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from .protocol import AGAIN, UNLOADED, Output, ServingError, Stream

log = logging.getLogger(__name__)

T = TypeVar("T")


class Work(Protocol):
    """Object that computes the steps of an `EngineLoop`. Only the loop's thread calls the
    methods."""

    @property
    def has_work(self) -> bool: ...

    def step(self) -> list[Output]: ...

    def cancel(self, streams: Sequence[Stream]) -> None: ...

    def fail_all(self, error: Exception) -> list[Output]: ...


class EngineLoop:
    """Computes steps on one thread while there is work."""

    def __init__(self, work: Work, name: str) -> None:
        self._work = work
        self._calls: list[Callable[[], None]] = []
        self._cancelled: list[Stream] = []
        self._wake = threading.Condition()
        self._closing = False
        self.rest = 0.0
        """Length of the pause after each step, relative to the step's time."""
        self._end = ServingError(f"{UNLOADED}: {AGAIN}")
        """Error for requests that are unfinished when the thread ends."""
        self._thread = threading.Thread(target=self._run, name=f"generate-{name}", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` between two steps and return its result, or raise its exception."""
        done = threading.Event()
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(function())
            except BaseException as error:
                errors.append(error)
            finally:
                done.set()

        with self._wake:
            if self._closing:
                raise self._end
            self._calls.append(run)
            self._wake.notify()
        done.wait()
        if errors:
            raise errors[0]
        return results[0]

    def post(self, function: Callable[[], None]) -> None:
        """Schedule `function` to run between two steps, and return at once."""
        with self._wake:
            if self._closing:
                raise self._end
            self._calls.append(function)
            self._wake.notify()

    def cancel(self, streams: Sequence[Stream]) -> None:
        with self._wake:
            self._cancelled += streams
            self._wake.notify()

    def close(self, reason: str = UNLOADED) -> None:
        """End the thread; requests in progress end with an error that gives the reason."""
        with self._wake:
            self._closing, self._end = True, ServingError(f"{reason}: {AGAIN}")
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._calls or self._cancelled or self._closing or self._work.has_work):
                    self._wake.wait()
                calls, self._calls = self._calls, []
                cancelled, self._cancelled = self._cancelled, []
                closing = self._closing
            for call in calls:
                call()
            if cancelled:
                self._work.cancel(cancelled)
            if closing:
                deliver(self._work.fail_all(self._end))
                return
            if self._work.has_work:
                began = time.perf_counter()
                self._step()
                if self.rest:
                    self._pause(self.rest * (time.perf_counter() - began))

    def _pause(self, seconds: float) -> None:
        with self._wake:
            self._wake.wait_for(lambda: self._closing, seconds)

    def _step(self) -> None:
        try:
            outputs = self._work.step()
        except Exception as error:  # a failed step must not end the thread
            log.exception("a generation step failed")
            outputs = self._work.fail_all(error)
        deliver(outputs)


def deliver(outputs: Sequence[Output]) -> None:
    """Call each `deliver` function once, with the outputs of all its streams."""
    by_function: dict[int, list[Output]] = {}
    for output in outputs:
        by_function.setdefault(id(output.stream.deliver), []).append(output)
    for group in by_function.values():
        group[0].stream.deliver(group)
