"""Wake-ups for workers: Celery messages, sent after the commit.

A lost, repeated or late message is harmless: workers act on the database's state, and the janitor
(a periodic task) sends another message. A thread sends the messages, so that no request waits for
the broker.
"""

from __future__ import annotations

import logging
import queue
import threading
from contextlib import suppress
from functools import partial

from celery import Celery
from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

from tunesmith_schema.queue import (
    LIGHT_QUEUE,
    TRAIN_QUEUE,
    TRAIN_TASK,
    VALIDATE_FILE_TASK,
    celery_broker,
)

log = logging.getLogger(__name__)

EXPIRES_SECONDS = 3600.0
"""Age at which the broker drops a message. Workers also poll the server."""

MAX_UNSENT = 1000
"""Maximum number of messages that wait for the broker; more are dropped."""
CLOSE_SECONDS = 3.0
"""Maximum seconds that `close` waits for unsent messages."""

_UNSENT = "unsent wake-ups"
"""Key in `session.info` of the transaction's unsent messages.

Each item has the savepoint that was open when the message was added (or None), and a function that
sends the message.
"""
_QUEUES = {TRAIN_TASK: TRAIN_QUEUE, VALIDATE_FILE_TASK: LIGHT_QUEUE}


class WakeUps:
    """Sender of wake-up messages, through Celery."""

    def __init__(self, broker_url: str) -> None:
        settings = celery_broker(broker_url)
        # Retry once without delay: kombu's default would block the caller for 6 s.
        settings["broker_transport_options"] |= {"max_retries": 1, "interval_start": 0}
        self._celery = Celery("tunesmith")
        self._celery.conf.update(
            settings,
            task_ignore_result=True,
            task_serializer="json",
            accept_content=["json"],
        )
        self._unsent: queue.Queue[tuple[str, str] | None] = queue.Queue(MAX_UNSENT)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def send(self, task: str, subject_id: str) -> None:
        """Send a message from another thread. If the broker is unreachable, only log the error."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="wake-ups", daemon=True)
                self._thread.start()
        try:
            self._unsent.put_nowait((task, subject_id))
        except queue.Full:
            log.warning(
                "wake-up %s for %s dropped: %d wake-ups are not sent yet",
                task,
                subject_id,
                MAX_UNSENT,
            )

    def _run(self) -> None:
        while message := self._unsent.get():
            self._send(*message)

    def _send(self, task: str, subject_id: str) -> None:
        try:
            self._celery.send_task(
                task,
                args=[subject_id],
                queue=_QUEUES[task],
                retry=False,
                ignore_result=True,
                expires=EXPIRES_SECONDS,
            )
        except Exception as error:  # each transport has its own errors; the janitor resends
            log.warning("wake-up %s for %s not sent: %s", task, subject_id, error)

    def send_after_commit(self, session: Session, task: str, subject_id: str) -> None:
        """Send a message after the session's transaction has committed. A rollback of the
        transaction, or of the savepoint that is now open, discards the message."""
        send = partial(self.send, task, subject_id)
        session.info.setdefault(_UNSENT, []).append((session.get_nested_transaction(), send))

    def close(self) -> None:
        """Send the remaining messages, for at most `CLOSE_SECONDS`."""
        if self._thread is not None:
            with suppress(queue.Full):
                self._unsent.put_nowait(None)
            self._thread.join(CLOSE_SECONDS)
        self._celery.close()


# Listeners of all sessions: registering them for each session takes 0.25 ms.
@event.listens_for(Session, "after_commit")
def _send_unsent(session: Session) -> None:
    if session.in_nested_transaction():  # SQLAlchemy calls this at the end of a savepoint too
        return
    for _, send in session.info.pop(_UNSENT, ()):
        send()


@event.listens_for(Session, "after_rollback")
def _discard(session: Session) -> None:
    """Discard the unsent messages of the part that SQLAlchemy has rolled back: the innermost open
    savepoint, or the whole transaction."""
    if unsent := session.info.get(_UNSENT):
        ended = session.get_nested_transaction()
        session.info[_UNSENT] = [one for one in unsent if ended and not _is_in(one[0], ended)]


def _is_in(savepoint: SessionTransaction | None, outer: SessionTransaction) -> bool:
    while savepoint is not None and savepoint is not outer:
        savepoint = savepoint.parent
    return savepoint is outer
