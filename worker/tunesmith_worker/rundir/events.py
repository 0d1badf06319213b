"""Write events.jsonl: one RunEvent per line, numbered without gaps.

The supervisor writes the first events before the trainer starts.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import JsonValue
from pydantic_core import to_json

from tunesmith_schema import EventKind, PhaseName, RunEvent
from tunesmith_schema.run import MAX_EVENT_BYTES

from .clock import WallClock

Level = Literal["info", "warn", "error"]


class EventLog:
    """Appends events to a file. The constructor removes an incomplete last line, which a crash may
    have left."""

    def __init__(
        self,
        path: Path,
        clock: WallClock | None = None,
        on_event: Callable[[RunEvent], None] = lambda event: None,
    ) -> None:
        """`clock`: clock that `phase` switches. `on_event`: function called with each written
        event."""
        self._path = path
        self._clock, self._on_event = clock or WallClock(), on_event
        self._last_seq = self._repair()

    def message(self, text: str, *, level: Level = "info", data: JsonData | None = None) -> None:
        self.append(EventKind.MESSAGE, text, data or {}, level=level)

    def append(self, kind: EventKind, text: str, data: JsonData, *, level: Level = "info") -> None:
        event = RunEvent(
            source_seq=self._last_seq + 1,
            created_at=time.time(),
            kind=kind,
            level=level,
            message=text[:4000],
            data=_storable(data),
        )
        line = event.model_dump_json(exclude_defaults=False) + "\n"
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line)
        self._last_seq = event.source_seq
        self._on_event(event)

    @contextmanager
    def phase(self, name: str, *, waited: float = 0.0) -> Iterator[None]:
        """Write a PHASE event with the block's duration if the block succeeds.

        `waited`: seconds to add to the block's duration.
        """
        began = time.perf_counter()
        with self._clock.during(_CLOCK_PHASE.get(name, name)):
            yield
        seconds = round(waited + time.perf_counter() - began, 3)
        self.append(
            EventKind.PHASE, f"{name} took {seconds:.1f} s", {"phase": name, "seconds": seconds}
        )

    def _repair(self) -> int:
        """Remove an incomplete last line; return the number of the last event."""
        if not self._path.exists():
            return 0
        content = self._path.read_bytes()
        complete = content.rfind(b"\n") + 1
        if complete < len(content):
            os.truncate(self._path, complete)
        lines = content[:complete].splitlines()
        return int(json.loads(lines[-1])["source_seq"]) if lines else 0


def _storable(data: JsonData) -> dict[str, JsonValue]:
    """Return the data of an event. If the data is too large, the largest values are left out, and
    `left_out` lists their names."""
    kept, left_out = dict(data), list[str]()
    while len(to_json(kept)) > MAX_EVENT_BYTES - _ROOM:
        name = max(kept, key=lambda name: len(to_json(kept[name])))
        del kept[name]
        left_out.append(name[:64])
    if left_out:
        kept["left_out"] = list[JsonValue](left_out[:20])
    return kept


_ROOM = 4096
"""Bytes of an event that are reserved for the list `left_out`."""
_CLOCK_PHASE = {"train": PhaseName.SETUP}
"""Phases to which `EventLog.phase` switches the clock, keyed by the block's name. Blocks that are
not listed have the name of their clock phase.

In the block `train`, the trainer switches the clock to further phases."""

JsonData = Mapping[str, JsonValue]


def finite(value: float | None) -> float | None:
    """Return None for NaN and infinity, because JSON cannot represent them."""
    return value if value is not None and math.isfinite(value) else None
