"""Queues, tasks and the broker: what server and worker agree on without importing each other."""

from __future__ import annotations

from typing import Any

TRAIN_QUEUE = "train"
"""One slot per device or device group."""
LIGHT_QUEUE = "light"
"""Short CPU work that the API needs."""

TRAIN_TASK = "tunesmith.train"
"""Wakes a train worker, which claims the best eligible job. Argument: the job id that caused it."""
VALIDATE_FILE_TASK = "tunesmith.validate_file"
"""Reads an uploaded data set and reports what is in it. Argument: the file id."""


def broker_transport(url: str) -> tuple[str, dict[str, Any]]:  # Any: options are kombu's own
    """Celery's broker URL and transport options for `TUNESMITH_BROKER_URL`.

    `filesystem:///folder` is polled ten times a second; anything else gives up connecting after
    2 s, because the database, not the broker, is the truth.
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
