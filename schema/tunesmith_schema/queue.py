"""Queues, tasks and the broker, shared by server and worker, which do not import each other."""

from __future__ import annotations

from typing import Any

TRAIN_QUEUE = "train"
"""Training jobs: one slot per device or device group."""
LIGHT_QUEUE = "light"
"""Short CPU tasks of the API."""

TRAIN_TASK = "tunesmith.train"
"""Task that wakes a train worker, which then claims the best eligible job. Argument: id of the job
that caused it."""
VALIDATE_FILE_TASK = "tunesmith.validate_file"
"""Task that validates an uploaded data set. Argument: the file id."""


def broker_transport(url: str) -> tuple[str, dict[str, Any]]:  # Any: options are kombu's own
    """Return Celery's broker URL and transport options for `TUNESMITH_BROKER_URL`.

    `filesystem:///folder` is polled ten times per second. Other brokers have a connection timeout
    of 2 s, because job state is in the database and a lost wake-up is harmless.
    """
    if not url.startswith("filesystem://"):
        return url, {"socket_connect_timeout": 2, "socket_timeout": 10}
    folder = url.removeprefix("filesystem://")
    return "filesystem://", {
        "data_folder_in": folder,
        "data_folder_out": folder,
        "control_folder": f"{folder}/control",
        "polling_interval": 0.1,
    }
