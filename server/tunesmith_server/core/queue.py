"""Wake-ups for workers: Celery messages by task name, sent after the commit and never trusted.

A message that is lost, doubled or late is harmless: the database is the truth and the janitor
sends another.
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
"""A worker that was busy for longer asks the server by itself; old wake-ups are thrown away."""

_QUEUES = {TRAIN_TASK: TRAIN_QUEUE, VALIDATE_FILE_TASK: LIGHT_QUEUE}


class WakeUps:
    """The Celery producer."""

    def __init__(self, broker_url: str) -> None:
        url, options = broker_transport(broker_url)
        self._celery = Celery("tunesmith", broker=url)
        self._celery.conf.update(
            # One more try, at once: kombu's own would hold up the caller for 6 s.
            broker_transport_options={**options, "max_retries": 1, "interval_start": 0},
            task_ignore_result=True,
            task_serializer="json",
            accept_content=["json"],
        )

    def send(self, task: str, subject_id: str) -> None:
        """Send now; a broker that is away costs a log line, not an error."""
        try:
            self._celery.send_task(
                task,
                args=[subject_id],
                queue=_QUEUES[task],
                retry=False,
                ignore_result=True,
                expires=EXPIRES_SECONDS,
            )
        except Exception as error:  # any transport's own error: the janitor is the recovery
            log.warning("wake-up %s for %s not sent: %s", task, subject_id, error)

    def send_after_commit(self, session: Session, task: str, subject_id: str) -> None:
        """Send once `session` has committed; a rollback drops it."""

        @event.listens_for(session, "after_commit", once=True)
        def _sent(_: Session) -> None:
            self.send(task, subject_id)

    def close(self) -> None:
        self._celery.close()
