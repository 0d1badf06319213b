"""Iterator over the parts of a streamed answer."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from tunesmith._http.connection import Http, connection_error
from tunesmith._http.errors import APIConnectionError, APIStreamError
from tunesmith._http.sse import events, lines
from tunesmith_schema import ErrorEnvelope

_END = "[DONE]"
M = TypeVar("M", bound=BaseModel)


class Stream(Generic[M]):
    """Parts of one answer, as they arrive. Close the stream, or leave its `with` block, to stop the
    generation.

    Raises APIStreamError if the server reports an error during the answer, and APIConnectionError
    if the connection breaks.
    """

    def __init__(self, http: Http, response: httpx.Response, kind: type[M]) -> None:
        self.response = response
        self._parts = self._read(http, kind)

    def __iter__(self) -> Iterator[M]:
        return self._parts

    def __next__(self) -> M:
        return next(self._parts)

    def close(self) -> None:
        self.response.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self, http: Http, kind: type[M]) -> Iterator[M]:
        request_id = self.response.headers.get("x-request-id")
        try:
            for event in events(lines(self.response.iter_bytes())):
                if event is None:
                    continue
                if event.data == _END:
                    return
                _raise_error(event.data, request_id)
                yield http.parse_json(kind, event.data, self.response)
        except httpx.RequestError as error:
            raise connection_error(error) from error
        finally:
            self.response.close()
        raise APIConnectionError(
            "the connection ended before the answer was complete",
            hint="send the request again",
            request_id=request_id,
        )


def _raise_error(data: str, request_id: str | None) -> None:
    if not data.startswith('{"error"'):
        return
    try:
        error = ErrorEnvelope.model_validate_json(data).error
    except ValidationError:
        return
    raise APIStreamError(error, request_id=error.request_id or request_id)
