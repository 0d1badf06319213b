"""One HTTP connection pool with the key, retries and error mapping. Knows no resource."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from tunesmith_schema import FROM_SERVER

from .backoff import backoff, retry_delay
from .errors import (
    APIConnectionError,
    APIResponseError,
    APITimeoutError,
    TunesmithError,
    status_error,
)
from .version import __version__

Params = Mapping[str, str | int | None]
M = TypeVar("M", bound=BaseModel)

_CONNECT_TIMEOUT = 5.0


class Http:
    """Sends requests relative to `base_url`; `sleep` and `now` are replaced in tests."""

    def __init__(
        self,
        *,
        base_url: httpx.URL,
        api_key: str,
        timeout: float,
        max_retries: int,
        transport: httpx.BaseTransport | None,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_retries = max_retries
        self.sleep = sleep
        self.now = now
        self._timeout = timeout
        self._client = httpx.Client(
            base_url=base_url,
            headers={
                "Authorization": f"Bearer {api_key}",
                "User-Agent": f"tunesmith-python/{__version__}",
            },
            transport=transport,
        )

    def close(self) -> None:
        self._client.close()

    @property
    def base_url(self) -> str:
        return str(self._client.base_url)

    @property
    def timeout(self) -> float:
        return self._timeout

    def get(self, model: type[M], path: str, params: Params | None = None) -> M:
        return parse(model, self.send("GET", path, params=params))

    def post(
        self,
        model: type[M],
        path: str,
        *,
        json: Any = None,  # Any: JSON
        data: Mapping[str, str] | None = None,
        files: Mapping[str, Any] | None = None,  # Any: httpx's own file tuples
        idempotency_key: str | None = None,
        read_timeout: float | None = None,
        can_repeat: Callable[[], bool] = lambda: True,
    ) -> M:
        """All tries carry one `Idempotency-Key`, so that a lost answer starts nothing twice."""
        response = self.send(
            "POST",
            path,
            json=json,
            data=data,
            files=files,
            headers={"Idempotency-Key": idempotency_key or str(uuid.uuid4())},
            read_timeout=read_timeout,
            can_repeat=can_repeat,
        )
        return parse(model, response)

    def delete(self, model: type[M], path: str) -> M:
        return parse(model, self.send("DELETE", path))

    def send(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        json: Any = None,  # Any: JSON
        data: Mapping[str, str] | None = None,
        files: Mapping[str, Any] | None = None,  # Any: httpx's own file tuples
        headers: Mapping[str, str] | None = None,
        read_timeout: float | None = None,
        stream: bool = False,
        retries: int | None = None,
        can_repeat: Callable[[], bool] = lambda: True,
    ) -> httpx.Response:
        """A 2xx answer, or an error from `_errors`. With `stream` the caller reads and closes it.

        Only GET follows redirects (to another host httpx goes without the key); anything else
        would hand a data set to whoever is named there.
        """
        timeout = httpx.Timeout(
            self._timeout if read_timeout is None else read_timeout,
            connect=min(self._timeout, _CONNECT_TIMEOUT),
        )
        most = self.max_retries if retries is None else retries
        for attempt in itertools.count():
            cause: Exception | None = None
            problem: TunesmithError
            delay: float | None
            # Built anew each time: a multipart stream can be read only once.
            request = self._client.build_request(
                method,
                path,
                params={k: v for k, v in (params or {}).items() if v is not None},
                json=json,
                data=data,
                files=files,
                headers=headers,
                timeout=timeout,
            )
            try:
                response = self._client.send(request, stream=True, follow_redirects=method == "GET")
                if not (stream and response.is_success):
                    response.read()
            except httpx.RequestError as error:
                cause, problem, delay = error, connection_error(error), backoff(attempt)
            else:
                if response.is_success:
                    return response
                problem, delay = status_error(response), retry_delay(response, attempt)
            if delay is None or attempt >= most or not can_repeat():
                raise problem from cause
            self.sleep(delay)
        raise AssertionError("itertools.count() does not end")


def connection_error(error: httpx.RequestError) -> APIConnectionError:
    asked = f"{error.request.method} {error.request.url}"
    if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
        return APITimeoutError(
            f"{asked} got no answer in time ({type(error).__name__})",
            hint="raise the client's timeout, or look at the server's log",
        )
    return APIConnectionError(
        f"{asked} did not get through: {str(error) or type(error).__name__}",
        hint="set SSL_CERT_FILE to a file with the server's certificate, or its authority's"
        if "CERTIFICATE_VERIFY_FAILED" in str(error)
        else "is the server running (tunesmith serve), and is the base URL right?",
    )


def parse(model: type[M], response: httpx.Response) -> M:
    return parse_json(model, response.content, response)


def parse_json(model: type[M], text: str | bytes, response: httpx.Response) -> M:
    """`text` came with `response`, which the error names."""
    try:
        return model.model_validate_json(text, context={FROM_SERVER: True})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise APIResponseError(
            f"{response.request.method} {response.request.url} did not answer with a "
            f"{model.__name__}: {where + ': ' if where else ''}{first['msg']}",
            hint="check that the base URL is a Tunesmith server's and ends in /v1, "
            "and that client and server have the same version",
            request_id=response.headers.get("x-request-id"),
        ) from error


def path_of(*parts: str) -> str:
    """A path below the base URL; ids may hold anything, a slash included."""
    return "/".join(quote(part, safe="") for part in parts)
