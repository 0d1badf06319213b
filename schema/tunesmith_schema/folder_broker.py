"""Celery's file-system broker, changed so that other processes see only complete files.

The library kombu creates a message file and then writes it, so another process can receive the file
while it is empty. `json.loads` then raises an error, which ends a Celery worker. This transport
writes a temporary file and renames it. kombu loads the transport class by its name, so no module
imports this class.
"""

from __future__ import annotations

import fcntl
import logging
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from kombu.transport import filesystem, virtual
from kombu.utils.json import dumps

log = logging.getLogger(__name__)

Untyped = Any  # Any: kombu is not typed


class Channel(filesystem.Channel):  # type: ignore[misc]  # kombu is untyped
    def _put(self, queue: str, payload: Untyped, **_: Untyped) -> None:
        """Add a message to a queue. The file name begins with the time, so that sorted file names
        give the order of the messages."""
        name = f"{round(monotonic() * 1000)}_{uuid.uuid4()}.{queue}.msg"
        _write(Path(self.data_folder_out) / name, dumps(payload))

    def _get(self, queue: str) -> Untyped:
        """Return the next message of a queue. Files that are damaged, for example by a power cut,
        are dropped. A dropped message does no harm, because the server's janitor (a periodic task)
        sends the message again."""
        while True:
            try:
                return super()._get(queue)
            except ValueError as error:
                log.warning("message of queue %s dropped: %s", queue, error)

    def get_table(self, exchange: str) -> Untyped:
        try:
            return super().get_table(exchange)
        except ValueError:  # damaged; `_queue_bind` writes it again
            return []

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        file = self._exchange_file(exchange)
        file.parent.mkdir(exist_ok=True)
        bound = filesystem.exchange_queue_t(routing_key or "", pattern or "", queue or "")
        with _locked(file.with_suffix(".lock")):
            table = self.get_table(exchange)
            if bound not in table:
                _write(file, dumps([bound, *table]))


class Transport(filesystem.Transport):  # type: ignore[misc]  # kombu is untyped
    Channel = Channel

    def __init__(self, client: Untyped, **given: Untyped) -> None:
        super().__init__(client, **given)
        # In kombu, all file-system brokers of a process share one record of queues, even if their
        # folders differ. The second folder then gets no routing table, and its messages are lost.
        self.state = virtual.BrokerState()


def _write(file: Path, text: str) -> None:
    temporary = file.with_name(f".{uuid.uuid4()}.new")  # not the name of a queue
    try:
        temporary.write_text(text)
        os.replace(temporary, file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
