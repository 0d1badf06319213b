"""Bounds of path, query and header parameters, and of multipart forms. `tunesmith_schema` has the
bounds of JSON bodies; `body_limits.py` has the largest body of each route."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Header, Path, Query, Request
from starlette.formparsers import MultiPartParser

from tunesmith_schema import ErrorCode
from tunesmith_schema.bounds import MAX_COUNT
from tunesmith_server.core.errors import BadRequest

IdPath = Annotated[str, Path(max_length=64)]
"""Id of an object, such as `ftjob-...`."""
ModelPath = Annotated[str, Path(max_length=512)]
FileNamePath = Annotated[str, Path(max_length=100)]
WorkerPath = Annotated[str, Path(max_length=128)]
AfterQuery = Annotated[str | None, Query(max_length=600)]
"""Cursor of a list: id or name of the last item of the previous page."""
FenceQuery = Annotated[int, Query(ge=1, le=MAX_COUNT)]
RangeHeader = Annotated[str | None, Header(max_length=200)]

_MAX_FORM_FILES, _MAX_FORM_FIELDS, _MAX_FIELD_BYTES = 1, 8, 4096
# Starlette would keep 1 MiB of each unfinished upload in memory.
MultiPartParser.spool_max_size = 64 * 1024


class BoundedRequest(Request):
    """Request that reads at most one file and a few short fields of a form."""

    def form(self, **_: Any) -> Any:  # Any: Starlette's own context manager
        return super().form(
            max_files=_MAX_FORM_FILES,
            max_fields=_MAX_FORM_FIELDS,
            max_part_size=_MAX_FIELD_BYTES,
        )

    async def json(self) -> Any:  # Any: JSON
        try:
            return await super().json()
        except json.JSONDecodeError:
            raise  # FastAPI names the position
        except (ValueError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise BadRequest(
                ErrorCode.INVALID_REQUEST, f"the body is not valid JSON: {reason}"[:300],
                hint="GET /docs lists every field with its bounds",
            ) from error  # fmt: skip
