"""Wake-ups for workers: Celery messages, sent after the commit.

A lost, repeated or late message is harmless: workers act on the database's state, and the janitor
sends another message.
"""

from __future__ import annotations

import logging

from celery import Celery
from sqlalchemy import event
from sqlalchemy.orm import Session

from tunesmith_schema.queue import (
    LIGHT_QUEUE,
    TRAIN_QUEUE,
    TRAIN_TASK,
    VALIDATE_FILE_TASK,
    broker_transport,
)

log = logging.getLogger(__name__)

EXPIRES_SECONDS = 3600.0
"""Age at which the broker drops a message. Workers also poll the server."""

_QUEUES = {TRAIN_TASK: TRAIN_QUEUE, VALIDATE_FILE_TASK: LIGHT_QUEUE}


class WakeUps:
    """Sender of wake-up messages, through Celery."""

    def __init__(self, broker_url: str) -> None:
        url, options = broker_transport(broker_url)
        self._celery = Celery("tunesmith", broker=url)
        self._celery.conf.update(
            # Retry once without delay: kombu's default would block the caller for 6 s.
            broker_transport_options={**options, "max_retries": 1, "interval_start": 0},
            task_ignore_result=True,
            task_serializer="json",
            accept_content=["json"],
        )

    def send(self, task: str, subject_id: str) -> None:
        """Send a message now. If the broker is unreachable, only log the error."""
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
        """Send a message after `session` has committed; a rollback discards the message."""

        @event.listens_for(session, "after_commit", once=True)
        def _sent(_: Session) -> None:
            self.send(task, subject_id)

    def close(self) -> None:
        self._celery.close()
