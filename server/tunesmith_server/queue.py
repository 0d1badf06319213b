"""Wake-ups for workers: Celery messages by task name, sent after the commit and never trusted.

A message that is lost, doubled or late is harmless: the database is the truth and the janitor
sends another.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery
from sqlalchemy import event
from sqlalchemy.orm import Session

from tunesmith_schema.queue import LIGHT_QUEUE, TRAIN_QUEUE, TRAIN_TASK, VALIDATE_FILE_TASK

log = logging.getLogger(__name__)

_QUEUES = {TRAIN_TASK: TRAIN_QUEUE, VALIDATE_FILE_TASK: LIGHT_QUEUE}


def broker_options(url: str) -> dict[str, Any]:
    """Transport options: give up soon when the broker is away; poll fast on the file transport."""
    if url.startswith("filesystem://"):
        folder = url.removeprefix("filesystem://")
        return {
            "data_folder_in": folder,
            "data_folder_out": folder,
            "control_folder": f"{folder}/control",
            "polling_interval": 0.1,
        }
    return {"socket_connect_timeout": 2, "socket_timeout": 10}


class WakeUps:
    """The Celery producer."""

    def __init__(self, broker_url: str) -> None:
        options = broker_options(broker_url)
        url = "filesystem://" if broker_url.startswith("filesystem://") else broker_url
        self._celery = Celery("tunesmith", broker=url)
        self._celery.conf.update(
            broker_transport_options=options,
            task_ignore_result=True,
            task_serializer="json",
            accept_content=["json"],
        )

    def send(self, task: str, subject_id: str) -> None:
        """Send now; a broker that is away costs a log line, not an error."""
        try:
            self._celery.send_task(
                task, args=[subject_id], queue=_QUEUES[task], retry=False, ignore_result=True
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
