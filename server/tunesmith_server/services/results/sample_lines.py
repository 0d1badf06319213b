"""Stored files of samples: gzipped JSON lines, one file per step. The files come from workers, so a
reader must expect damaged files, lost files and decompression bombs."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import suppress
from gzip import BadGzipFile

from pydantic_core import from_json

from tunesmith_schema import Sample
from tunesmith_server.core.storage import Storage
from tunesmith_server.core.stored_file import open_stored
from tunesmith_server.models import SamplesRow

MAX_LINE = 16 * 1024 * 1024
"""Maximum bytes of one sample; a longer sample and all samples after it are unreadable."""


def prefix(job_id: str) -> str:
    """Return the text with which the ids of a job's samples start."""
    return f"ftsample-{job_id.removeprefix('ftjob-')}"


def sample_id(row: SamplesRow, index: int) -> str:
    """Return the id of the sample that has this index in its step."""
    return f"{prefix(row.job_id)}-{row.step}-{index}"


def read(storage: Storage, row: SamplesRow, count: int) -> Iterator[bytes]:
    """Yield the first `count` lines of a step's file; stop at a line that cannot be read."""
    with (
        suppress(FileNotFoundError, BadGzipFile, EOFError, zlib.error, ValueError, TypeError),
        open_stored(storage, row.sha256, 0, row.bytes) as stored,
        gzip.open(stored) as file,
    ):
        for _ in range(count):
            line = file.readline(MAX_LINE)
            if not line.endswith(b"\n"):
                return
            yield line


def parse(job_id: str, row: SamplesRow, index: int, line: bytes | None) -> Sample:
    """Return the sample in a line; for an unreadable line, a sample with the finish_reason
    `unreadable`."""
    head = {
        "id": f"{prefix(job_id)}-{row.step}-{index}",
        "created_at": int(row.created_at) if isinstance(row.created_at, float) else 0,
        "step": row.step,
    }
    if line is not None:
        with suppress(ValueError, TypeError):
            return Sample.model_validate({**from_json(line), **head})
    return Sample.model_validate({**_UNREADABLE, **head})


_UNREADABLE = {
    "group": 0, "row": 0, "prompt": "", "completion": "", "prompt_tokens": 0,
    "completion_tokens": 0, "finish_reason": "unreadable",
}  # fmt: skip
