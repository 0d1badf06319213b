"""Names of queues and tasks, so that server and worker agree without importing each other."""

from __future__ import annotations

TRAIN_QUEUE = "train"
"""One slot per device or device group."""
LIGHT_QUEUE = "light"
"""Short CPU work that the API needs."""

TRAIN_TASK = "tunesmith.train"
"""Wakes a train worker, which claims the best eligible job. Argument: the job id that caused it."""
VALIDATE_FILE_TASK = "tunesmith.validate_file"
"""Reads an uploaded data set and reports what is in it. Argument: the file id."""
