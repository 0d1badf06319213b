"""events.jsonl as the supervisor reads it: whole lines only, in order, resent until stored."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from pydantic import JsonValue

from tunesmith_schema import MAX_EVENTS_PER_REPORT, EventKind, RunEvent


class EventReader:
    """What was written and is not yet known to be stored by the server."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._pending: deque[RunEvent] = deque()
        self._last_line = self._shift = 0
        self.resume_points: list[RunEvent] = []
        """Those that are not stored yet, oldest first: no news before, and they hold up none."""
        self.phase = "download"
        """The part of the work going on, as the newest PHASE event has it."""
        self.phases: dict[str, float] = {}
        """Seconds by phase, of those that PHASE events have told of."""
        self.first_step_waits = False
        """The first METRICS event was read and is not stored yet."""
        self._stepped = False

    def read(self) -> None:
        """Take in the lines that have been completed since."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return
        complete = content[: content.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.splitlines():
            event = RunEvent.model_validate_json(line)
            self._last_line = event.source_seq
            if event.kind is EventKind.RESUME_POINT:
                self.resume_points.append(event)
                self._shift -= 1
                continue
            event.source_seq += self._shift
            self._pending.append(event)
            if event.kind is EventKind.METRICS and not self._stepped:
                self._stepped = self.first_step_waits = True
            if event.kind is EventKind.PHASE:
                self._ended(str(event.data.get("phase")), event.data.get("seconds"))

    def add(self, event: RunEvent) -> None:
        """One that was held back is news now: it comes after all that were read."""
        self._shift += 1
        event.source_seq = self._last_line + self._shift
        self._pending.append(event)

    def _ended(self, phase: str, seconds: JsonValue) -> None:
        self.phase = _NEXT_PHASE.get(phase, self.phase)
        if isinstance(seconds, int | float):
            self.phases[phase] = self.phases.get(phase, 0.0) + seconds

    def batch(self) -> list[RunEvent]:
        """The next events to report. A checkpoint or samples whose files are not stored yet hold up
        the events behind them, so that their order stays what it was: a resume point that is told
        has the samples of its steps in storage."""
        ready: list[RunEvent] = []
        for event in self._pending:
            if len(ready) == MAX_EVENTS_PER_REPORT or needs_upload(event):
                break
            ready.append(event)
        return ready

    def next_upload(self) -> RunEvent | None:
        """The first checkpoint whose files are not stored yet."""
        return next(iter(self.waiting(EventKind.CHECKPOINT)), None)

    def waiting(self, kind: EventKind) -> list[RunEvent]:
        """Those of a kind whose files are not stored yet, oldest first."""
        return [one for one in self._pending if one.kind is kind and needs_upload(one)]

    def stored(self, source_seq: int) -> None:
        """The server has everything up to this number."""
        while self._pending and self._pending[0].source_seq <= source_seq:
            if self._pending.popleft().kind is EventKind.METRICS:
                self.first_step_waits = False

    def abandon_uploads(self) -> None:
        """Report the remaining checkpoints and samples as events only: their files are not wanted
        any more."""
        for event in self._pending:
            if needs_upload(event):
                if event.kind is EventKind.SAMPLES:
                    drop_samples(event, "the run had to end before they were stored")
                else:
                    event.files = []

    def clear(self) -> None:
        """Give up on what is not stored yet."""
        self._pending.clear()

    def __len__(self) -> int:
        return len(self._pending)


_NEXT_PHASE = {
    "claim": "download",
    "download": "spawn",
    "spawn": "import",
    "import": "load",
    "load": "data",
    "data": "train",
    "train": "save",
    "save": "upload",
}
"""A PHASE event tells of the end of one; the job then is in the next."""


def needs_upload(event: RunEvent) -> bool:
    return event.kind in (EventKind.CHECKPOINT, EventKind.SAMPLES) and event.files is None


def drop_samples(event: RunEvent, why: str) -> None:
    """They will not be there to be read: what was to tell of them warns instead."""
    event.kind, event.level, event.files = EventKind.MESSAGE, "warn", None
    event.message = f"{event.message}, lost: {why}"[:4000]
