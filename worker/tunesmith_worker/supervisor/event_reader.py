"""Read events.jsonl for the supervisor, and keep each event until the server has confirmed it."""

from __future__ import annotations

import logging
import time
from collections import deque
from pathlib import Path

from pydantic import JsonValue, ValidationError
from pydantic_core import to_json

from tunesmith_schema import MAX_EVENTS_PER_REPORT, EventKind, RunEvent
from tunesmith_schema.field_errors import field_errors

log = logging.getLogger(__name__)

MAX_REPORT_BYTES = 1024 * 1024
"""Maximum size of a report's events; the server refuses a body of more than 4 MiB."""


class EventReader:
    """Reads events.jsonl and keeps the events that the server has not confirmed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._pending: deque[RunEvent] = deque()
        self._last_line = self._shift = 0
        self.resume_points: list[RunEvent] = []
        """Events of resume points whose files are not stored yet, oldest first. Each event is
        reported after its files are uploaded."""
        self.phase = "download"
        """Current phase, according to the newest PHASE event."""
        self.phases: dict[str, float] = {}
        """Seconds of each phase, from PHASE events."""
        self.first_step_pending = False
        """True from the time when the first METRICS event is read until the server confirms this
        event."""
        self.stepped = False
        """True after the first METRICS event."""
        self.confirmed_seq = 0
        """Number of the newest event that the server has accepted."""

    def read(self) -> None:
        """Read all lines that the trainer has completed since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return
        complete = content[: content.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.splitlines():
            event = _parse(line, self._last_line + 1)
            self._last_line = event.source_seq
            if event.kind is EventKind.RESUME_POINT:
                self.resume_points.append(event)
                self._shift -= 1
                continue
            event.source_seq += self._shift
            self._pending.append(event)
            if event.kind is EventKind.METRICS and not self.stepped:
                self.stepped = self.first_step_pending = True
            if event.kind is EventKind.PHASE:
                self._phase_ended(str(event.data.get("phase")), event.data.get("seconds"))

    def add(self, event: RunEvent) -> None:
        """Append the event of a resume point whose upload has ended."""
        self._shift += 1
        event.source_seq = self._last_line + self._shift
        self._pending.append(event)

    def _phase_ended(self, phase: str, seconds: JsonValue) -> None:
        self.phase = _NEXT_PHASE.get(phase, self.phase)
        if isinstance(seconds, int | float):
            self.phases[phase] = self.phases.get(phase, 0.0) + seconds

    def batch(self) -> list[RunEvent]:
        """Return the next events to report.

        If the files of a checkpoint or of samples are not stored yet, all later events wait, so
        that events are sent in order. Therefore the samples of all steps
        before a resume point are in storage when the resume point is reported.
        """
        ready: list[RunEvent] = []
        size = 0
        for event in self._pending:
            size += len(event.message) + len(to_json(event.data))
            full = len(ready) == MAX_EVENTS_PER_REPORT or (ready and size > MAX_REPORT_BYTES)
            if full or needs_upload(event):
                break
            ready.append(event)
        return ready

    def next_upload(self) -> RunEvent | None:
        """Return the first checkpoint event whose files are not stored yet."""
        return next(iter(self.pending_uploads(EventKind.CHECKPOINT)), None)

    def pending_uploads(self, kind: EventKind) -> list[RunEvent]:
        """Return events of `kind` whose files are not stored yet, oldest first."""
        return [event for event in self._pending if event.kind is kind and needs_upload(event)]

    def confirm(self, source_seq: int) -> None:
        """Remove events up to this number, because the server has them."""
        self.confirmed_seq = max(self.confirmed_seq, source_seq)
        while self._pending and self._pending[0].source_seq <= source_seq:
            if self._pending.popleft().kind is EventKind.METRICS:
                self.first_step_pending = False

    def abandon_uploads(self) -> None:
        """Report the remaining checkpoints and samples without their files."""
        for event in self._pending:
            if needs_upload(event):
                if event.kind is EventKind.SAMPLES:
                    drop_samples(event, "the run ended before they were stored")
                else:
                    event.files = []

    def clear(self) -> None:
        """Remove all unconfirmed events."""
        self._pending.clear()

    def __len__(self) -> int:
        return len(self._pending)


def _parse(line: bytes, number: int) -> RunEvent:
    """Return the event in a line of events.jsonl. If a line is not an event or is too large for a
    report, return a warning instead."""
    try:
        return RunEvent.model_validate_json(line)
    except ValidationError as error:
        first = field_errors(error.errors(include_url=False, include_input=False))[0]
        log.warning("line %d of events.jsonl is not an event: %s", number, error)
        return RunEvent(
            source_seq=number,
            created_at=time.time(),
            kind=EventKind.QUARANTINED,
            level="warn",
            message=f"event {number} of the trainer was not sent: {first.name}: {first.message}"[
                :1000
            ],
            data={"kind": "?", "source_seq": number, "reason": first.message[:300]},
        )


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
"""Next phase, keyed by the phase that ended."""


def needs_upload(event: RunEvent) -> bool:
    return event.kind in (EventKind.CHECKPOINT, EventKind.SAMPLES) and event.files is None


def drop_samples(event: RunEvent, reason: str) -> None:
    """Change an event about a file of samples to a warning that the samples are lost."""
    event.kind, event.level, event.files = EventKind.MESSAGE, "warn", None
    event.message = f"{event.message}, lost: {reason}"[:4000]
