"""Progress of a job while a program waits: one updated line on a terminal, else a new line for each
change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import RLock
from types import TracebackType
from typing import Self

from pydantic import JsonValue
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from tunesmith._http.errors import TunesmithError
from tunesmith_schema import TERMINAL, Event, EventKind, Job, JobState

LINE_SECONDS = 10.0
"""Minimum seconds between two printed lines that differ only in their numbers. If the output is a
terminal, one line is updated, and this limit does not apply."""
BAR_COLUMNS = 100
"""Minimum width of the terminal in columns; a narrower terminal shows the numbers without a bar."""
_STARTED = frozenset({JobState.RUNNING, JobState.PAUSING})


class _Spinner(SpinnerColumn):
    def render(self, task: Task) -> RenderableType:
        return self.finished_text if task.fields["is_over"] else super().render(task)


class _Elapsed(ProgressColumn):
    """Time since the job's start; before the start, time since its creation."""

    def __init__(self, view: ProgressView) -> None:
        super().__init__(table_column=Column(no_wrap=True, min_width=5))
        self._view = view

    def render(self, task: Task) -> Text:
        return Text(self._view.elapsed())


class ProgressView:
    """State of a job on stderr, so that stdout stays free for pipes."""

    def __init__(self, console: Console | None = None, job: Job | None = None) -> None:
        self._console = console or Console(stderr=True)
        bar = [BarColumn(bar_width=16)] if self._console.width >= BAR_COLUMNS else []
        self._progress = Progress(
            _Spinner(finished_text=" "),
            _Elapsed(self),
            TextColumn("{task.description}", markup=False),
            *bar,
            TextColumn("{task.fields[numbers]}", markup=False),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("waiting", total=None, numbers="", is_over=False)
        self._lock = RLock()  # a thread calls `show_job`
        self._state, self._phase, self._reason = "", "", ""
        self._is_lost = self._is_stopping = False
        self._since: float | None = None
        self._ended: float | None = None
        self._first: tuple[int, int] | None = None  # step and time of the first metrics
        self._at: tuple[float, float | None, int] | None = None  # step, total, time
        self._latest: dict[str, JsonValue] = {}
        self._printed, self._printed_at, self._unprinted = "", 0.0, ""
        if job is not None:
            self.show_job(job)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
        if self._unprinted:
            self._print(self._unprinted)

    def show(self, event: Event) -> None:
        """Show an event of the job."""
        with self._lock:
            if event.kind is EventKind.STATE:
                self._enter_state(str(event.data.get("state", "")), event.created_at)
            elif event.kind is EventKind.METRICS:
                self._take_metrics(event)
            elif event.level != "info":
                self._print(f"{'warning' if event.level == 'warn' else 'error'}: {event.message}")
            self._draw()

    def show_job(self, job: Job) -> None:
        """Show the job's phase, the reason why it waits, and a requested stop."""
        with self._lock:
            if self._state in TERMINAL:
                return
            self._state = str(job.state)
            self._phase = job.phase or ""
            waiting, number = job.waiting_because, job.queue_position
            position = f"number {number}, " if number else ""
            self._reason = f"{position}{waiting.message}" if waiting else ""
            self._is_stopping = job.stop_requested or job.cancel_requested
            self._since = job.started_at or job.created_at
            self._draw()

    def show_connection(self, problem: TunesmithError | None) -> None:
        """Show that the connection to the server is lost; if `problem` is None, show that it is
        back."""
        with self._lock:
            if self._is_lost != (problem is not None):
                self._is_lost = problem is not None
                self._draw()

    def elapsed(self) -> str:
        if self._since is None:
            return ""
        return _clock(max(0.0, (self._ended or time.time()) - self._since))

    def _enter_state(self, state: str, at: float) -> None:
        if state == self._state == JobState.RUNNING:
            return
        self._state, self._phase, self._reason = state, "", ""
        # A new attempt may start at an earlier step and at a different speed.
        self._first = None
        if self._since is None or (state == JobState.RUNNING and self._at is None):
            self._since = at
        if state in TERMINAL:
            self._ended = at
        if state == JobState.QUEUED:
            self._latest.clear()
            self._at = None

    def _take_metrics(self, event: Event) -> None:
        step, total = _number(event.data.get("step")), _number(event.data.get("total_steps"))
        if step is None:
            return
        # Evaluation metrics have no training loss, so the line keeps the last value.
        self._latest |= {key: value for key, value in event.data.items() if value is not None}
        if self._first is None or self._first[0] > step:
            self._first = (int(step), event.created_at)
        self._at = (step, total, event.created_at)

    def _draw(self) -> None:
        step, total = self._at[:2] if self._at else (0, None)
        numbers = "" if self._is_lost else "  ".join(self._numbers())
        self._progress.update(
            self._task,
            description=self._description(),
            completed=step,
            total=total or None,
            numbers=numbers,
            is_over=self._state in TERMINAL,
        )
        if not self._console.is_terminal:
            self._print_if_new(self._description(), numbers)

    def _description(self) -> str:
        if self._is_lost:
            return "connection lost, retrying"
        if self._state == JobState.PAUSED:
            return "paused until resumed"
        if self._state in _STARTED and self._phase:
            return self._phase.replace("_", " ")
        return (f"{self._state}: {self._reason}" if self._reason else self._state) or "waiting"

    def _numbers(self) -> Iterator[str]:
        if self._at is None:
            return
        step, total, at = self._at
        yield f"{step:.0f}" + (f"/{total:.0f}" if total else "")
        yield from self._rewards() if "reward" in self._latest else self._losses()
        goes_on = self._state in _STARTED or not self._state
        if total and goes_on and not self._is_stopping:
            seconds = self._seconds_left(step, total, at)
            if seconds is not None:
                yield f"ETA {_clock(seconds)}"

    def _losses(self) -> Iterator[str]:
        if (loss := _number(self._latest.get("train_loss"))) is not None:
            yield f"loss {loss:.4g}"
        if (valid := _number(self._latest.get("valid_loss"))) is not None:
            yield f"valid {valid:.4g}"
        if (speed := _number(self._latest.get("tokens_per_second"))) is not None:
            yield f"{_short(speed)} tok/s"

    def _rewards(self) -> Iterator[str]:
        """Yield the progress fields of a reinforcement job. The loss is left out, because it does
        not show the progress of reinforcement."""
        reward, spread = _number(self._latest["reward"]), _number(self._latest.get("reward_std"))
        yield f"reward {reward:.3g}" + ("" if spread is None else f" ± {spread:.2g}")
        if (valid := _number(self._latest.get("valid_reward"))) is not None:
            yield f"valid {valid:.3g}"
        if (length := _number(self._latest.get("completion_length"))) is not None:
            yield f"{length:.0f} tok"

    def _seconds_left(self, step: float, total: float, at: int) -> float | None:
        """Estimate the remaining seconds from the times at which the events were created. The times
        at which the events arrive are useless, because all past events arrive at once."""
        if self._first is None:
            return None
        first_step, first_time = self._first
        if step <= first_step or at <= first_time:
            return None
        pace = (at - first_time) / (step - first_step)
        return max(0.0, (total - step) * pace - max(0.0, time.time() - at))

    def _print_if_new(self, description: str, numbers: str) -> None:
        line = "  ".join(part for part in (self.elapsed(), description, numbers) if part)
        is_due = time.monotonic() - self._printed_at >= LINE_SECONDS and bool(numbers)
        if description != self._printed or is_due:
            self._print(line)
            self._printed, self._printed_at, self._unprinted = description, time.monotonic(), ""
        elif numbers:
            self._unprinted = line

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _number(value: JsonValue) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _short(value: float) -> str:
    for factor, unit in ((1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.1f}{unit}"
    return f"{value:.0f}"


def _clock(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
