"""Names of queues and tasks, and the broker's options, for server and worker."""

from __future__ import annotations

from typing import Any

TRAIN_QUEUE = "train"
"""Queue of training jobs; each training worker runs one job at a time."""
LIGHT_QUEUE = "light"
"""Queue of short CPU tasks, for example the validation of a file."""

TRAIN_TASK = "tunesmith.train"
"""Task that wakes a training worker; the worker then claims the best eligible job or evaluation.
The task's argument is the id of the job or evaluation for which the task was sent."""
VALIDATE_FILE_TASK = "tunesmith.validate_file"
"""Task that validates an uploaded data set. The argument of the task is the file id."""


def celery_broker(url: str) -> dict[str, Any]:  # Any: the settings are Celery's
    """Return Celery's broker settings for `TUNESMITH_BROKER_URL`.

    A `filesystem:///folder` broker is polled ten times per second. Other brokers have a connection
    timeout of 2 s. A message that is lost does no harm, because the states of jobs are in the
    database.
    """
    if not url.startswith("filesystem://"):
        options = {"socket_connect_timeout": 2, "socket_timeout": 10}
        return {"broker_url": url, "broker_transport_options": options}
    folder = url.removeprefix("filesystem://")
    return {
        "broker_url": "filesystem://",
        "broker_transport": "tunesmith_schema.folder_broker:Transport",
        "broker_transport_options": {
            "data_folder_in": folder,
            "data_folder_out": folder,
            "control_folder": f"{folder}/control",
            "polling_interval": 0.1,
        },
    }
