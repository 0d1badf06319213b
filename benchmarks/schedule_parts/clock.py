"""Virtual clock: `time.time`, `time.monotonic` and SQLite's clock show the time of a simulation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from sqlalchemy import event

from tunesmith_server.core.database import Database

_JULIAN_EPOCH, _DAY = 2440587.5, 86_400.0


class Clock:
    """Time of a simulation. `step` sets only the wall clock forward or back."""

    def __init__(self, start: float) -> None:
        self.steady = 0.0
        """Monotonic time: seconds since the start of the simulation."""
        self._offset = start

    def advance_to(self, steady: float) -> None:
        self.steady = max(self.steady, steady)

    def step(self, seconds: float) -> None:
        self._offset += seconds

    def time(self) -> float:
        return self.steady + self._offset

    def monotonic(self) -> float:
        return self.steady

    @contextmanager
    def governs(self, database: Database) -> Iterator[None]:
        """Replace the clocks of this process and of an SQLite database."""

        def replace_clock(connection: Any, record: object) -> None:  # Any: a DBAPI connection
            connection.execute("PRAGMA synchronous=OFF")  # nothing here must survive a power cut
            connection.create_function("julianday", 1, lambda _: self.time() / _DAY + _JULIAN_EPOCH)

        event.listen(database.engine, "connect", replace_clock)
        database.engine.dispose()  # connections that exist have the real clock
        with (
            mock.patch.object(time, "time", self.time),
            mock.patch.object(time, "monotonic", self.monotonic),
        ):
            yield
