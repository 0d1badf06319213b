"""Progress line of a job, drawn from the job's events."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from pydantic import JsonValue
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TextColumn

from tunesmith_schema import TERMINAL, Event, EventKind, JobState


class _Spinner(SpinnerColumn):
    """A spinner that stops when the job has ended."""

    def render(self, task: Task) -> RenderableType:
        return self.finished_text if task.fields["is_over"] else super().render(task)


class ProgressView:
    """Progress line on stderr, so that stdout stays free for pipes."""

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            _Spinner(finished_text=" "),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=console or Console(stderr=True),
        )
        self._task = self._progress.add_task("waiting", total=None, numbers="", is_over=False)
        self._started: tuple[int, int] | None = None  # step and time of the first metrics
        self._latest: dict[str, JsonValue] = {}

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

    def show(self, event: Event) -> None:
        if event.kind is EventKind.STATE:
            state = str(event.data.get("state", ""))
            # A new attempt may start at an earlier step and at a different speed.
            self._started = None
            shown = "paused until resumed" if state == JobState.PAUSED else state
            self._progress.update(self._task, description=shown, is_over=state in TERMINAL)
            if state == JobState.QUEUED:
                self._latest.clear()
                self._progress.update(self._task, total=None, numbers="")
        elif event.kind is EventKind.METRICS:
            self._show_metrics(event)

    def _show_metrics(self, event: Event) -> None:
        step, total = _number(event.data.get("step")), _number(event.data.get("total_steps"))
        if step is None:
            return
        parts = [f"{step:.0f}" + (f"/{total:.0f}" if total else "")]
        # Evaluation metrics have no training loss, so the line keeps the last value.
        self._latest |= {key: value for key, value in event.data.items() if value is not None}
        parts += self._rewards() if "reward" in self._latest else self._losses()
        if total and (seconds := self._seconds_left(step, total, event.created_at)) is not None:
            parts.append(f"ETA {_clock(seconds)}")
        self._progress.update(
            self._task, completed=step, total=total or None, numbers="  ".join(parts)
        )

    def _losses(self) -> Iterator[str]:
        if (loss := _number(self._latest.get("train_loss"))) is not None:
            yield f"loss {loss:.4g}"
        if (valid := _number(self._latest.get("valid_loss"))) is not None:
            yield f"valid {valid:.4g}"
        if (speed := _number(self._latest.get("tokens_per_second"))) is not None:
            yield f"{_short(speed)} tok/s"

    def _rewards(self) -> Iterator[str]:
        """Yield the progress fields of a reinforcement job, without the loss, which does not show
        progress."""
        reward, spread = _number(self._latest["reward"]), _number(self._latest.get("reward_std"))
        yield f"reward {reward:.3g}" + ("" if spread is None else f" ± {spread:.2g}")
        if (valid := _number(self._latest.get("valid_reward"))) is not None:
            yield f"valid {valid:.3g}"
        if (length := _number(self._latest.get("completion_length"))) is not None:
            yield f"{length:.0f} tok"

    def _seconds_left(self, step: float, total: float, at: int) -> float | None:
        """Estimate the seconds left from the times in the events, because past events arrive all at
        once."""
        if self._started is None or self._started[0] > step:
            self._started = (int(step), at)
        first_step, first_time = self._started
        if step <= first_step or at <= first_time:
            return None
        pace = (at - first_time) / (step - first_step)
        return max(0.0, (total - step) * pace - max(0.0, time.time() - at))


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
