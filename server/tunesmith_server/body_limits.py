"""Largest body of each route, in bytes. The server reads no body beyond its limit."""

from __future__ import annotations

import re

from tunesmith_schema import MAX_PART_BYTES
from tunesmith_schema.bounds import MAX_FILE_BYTES

KIB, MIB = 1024, 1024 * 1024
MULTIPART_BYTES = 64 * KIB
"""Upper bound on the bytes that multipart encoding adds to a file."""
JSON_BYTES = MIB
"""Limit of routes that are not listed below, for example of the route that creates a job."""

_LIMITS = [
    (re.compile(pattern), limit)
    for pattern, limit in (
        (r"/v1/uploads/[^/]+/parts", MAX_PART_BYTES + MULTIPART_BYTES),
        (r"/v1/uploads", 16 * KIB),
        (r"/internal/jobs/[^/]+/report", 4 * MIB),
        (r"/internal/jobs/[^/]+/blobs/[^/]+", MAX_FILE_BYTES),
        (r"/internal/files/[^/]+/reading/result", 8 * MIB),
        (r"/internal/jobs/claim", 16 * KIB),
    )
]


def body_limit(path: str, max_file_bytes: int) -> int:
    """Return the largest body of a request to `path`."""
    if path in ("/v1/files", "/portal/data/upload"):
        return max_file_bytes + MULTIPART_BYTES
    return next((limit for pattern, limit in _LIMITS if pattern.fullmatch(path)), JSON_BYTES)
