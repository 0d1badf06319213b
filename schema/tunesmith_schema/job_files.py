"""Files of a job: its inputs, its records and its results."""

from __future__ import annotations

from typing import Literal

from .base import Response


class JobFile(Response):
    """A file of a job. Some files are made from database rows when a client reads them."""

    id: str
    """File id of a data file; for other files, the same as `name`."""
    object: Literal["fine_tuning.job.file"] = "fine_tuning.job.file"
    name: str
    """Name of the file."""
    kind: (
        Literal[
            "training_file", "validation_file", "recipe", "environment", "log", "metrics",
            "report", "self_check", "evaluation", "weights", "verification",
        ]
        | str
    )  # fmt: skip
    """Kind of file. `recipe`: the create request, with all fields of the recipe. `environment`:
    device, settings and library versions. `log`: all events except metrics and samples."""
    media_type: str
    """Media type of the content, for example `application/json`."""
    bytes: int | None = None
    """Size in bytes; null for a file that is made when it is read."""
    sha256: str | None = None
    path: str
    """Path of the content on this server, for example `/v1/files/file-1/content`."""
