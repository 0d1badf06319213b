"""HTTP connection pool with the API key, retries and the mapping of responses to errors."""

from __future__ import annotations

import itertools
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
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
    v1_hint,
)
from .version import __version__

Params = Mapping[str, str | int | float | Sequence[str] | None]
M = TypeVar("M", bound=BaseModel)

_CONNECT_TIMEOUT = 5.0


class Http:
    """HTTP client with paths relative to `base_url`. Tests replace `sleep` and `now`."""

    def __init__(
        self,
        *,
        base_url: httpx.URL,
        api_key: str,
        timeout: float,
        max_retries: int,
        transport: httpx.BaseTransport | None,
        project: str | None = None,
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
                **({"OpenAI-Project": project} if project else {}),
            },
            transport=transport,
        )

    def close(self) -> None:
        self._client.close()

    @property
    def base_url(self) -> str:
        return str(self._client.base_url).rstrip("/")

    @property
    def timeout(self) -> float:
        return self._timeout

    def get(self, model: type[M], path: str, params: Params | None = None) -> M:
        return self.parse(model, self.send("GET", path, params=params))

    def post(
        self,
        model: type[M],
        path: str,
        *,
        params: Params | None = None,
        json: Any = None,  # Any: JSON
        data: Mapping[str, str] | None = None,
        files: Mapping[str, Any] | None = None,  # Any: httpx's own file tuples
        idempotency_key: str | None = None,
        read_timeout: float | None = None,
        can_repeat: Callable[[], bool] = lambda: True,
    ) -> M:
        """Send a POST. All tries send the same `Idempotency-Key`, so the server executes the
        request only once."""
        response = self.send(
            "POST",
            path,
            params=params,
            json=json,
            data=data,
            files=files,
            headers={"Idempotency-Key": idempotency_key or str(uuid.uuid4())},
            read_timeout=read_timeout,
            can_repeat=can_repeat,
        )
        return self.parse(model, response)

    def patch(self, model: type[M], path: str, json: Any) -> M:  # Any: JSON
        return self.parse(model, self.send("PATCH", path, json=json))

    def delete(self, model: type[M], path: str) -> M:
        return self.parse(model, self.send("DELETE", path))

    def parse(self, model: type[M], response: httpx.Response) -> M:
        return self.parse_json(model, response.content, response)

    def parse_json(self, model: type[M], text: str | bytes, response: httpx.Response) -> M:
        """Parse `text`, a part of the body of `response`, as an object of the class `model`."""
        try:
            return model.model_validate_json(text, context={FROM_SERVER: True})
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise APIResponseError(
                f"{response.request.url} did not answer with a {model.__name__}: "
                f"{field + ': ' if field else ''}{first['msg']}",
                hint=v1_hint(self.base_url)
                or f"check that {self.base_url} is the address of a Tunesmith server, and that "
                "client and server have the same version",
                request_id=response.headers.get("x-request-id"),
            ) from error

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
        """Send a request, with retries, and return the 2xx response; raise an error for any other
        response. With `stream`, the caller reads and closes the response.

        Only GET requests follow redirects, because a redirected POST request could send the user's
        data to another host. If a GET request is redirected to another host, httpx does not send
        the API key.
        """
        timeout = httpx.Timeout(
            self._timeout if read_timeout is None else read_timeout,
            connect=min(self._timeout, _CONNECT_TIMEOUT),
        )
        max_retries = self.max_retries if retries is None else retries
        for attempt in itertools.count():
            cause: Exception | None = None
            problem: TunesmithError
            delay: float | None
            # Each try needs a new request: a multipart stream can be read only once.
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
                problem = status_error(response, self.base_url)
                delay = retry_delay(response, attempt)
            if delay is None or attempt >= max_retries or not can_repeat():
                raise problem from cause
            self.sleep(delay)
        raise AssertionError("itertools.count() does not end")


def connection_error(error: httpx.RequestError) -> APIConnectionError:
    url = error.request.url
    if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
        return APITimeoutError(
            f"no answer in time from {url} ({type(error).__name__})",
            hint="check the log of the server",
        )
    return APIConnectionError(
        f"no connection to {url}: {_reason(error)}",
        hint="set SSL_CERT_FILE to a file with the certificate of the server or of its issuer"
        if "CERTIFICATE_VERIFY_FAILED" in str(error)
        else "check that the server is running (tunesmith serve) and that the base URL is right",
    )


def _reason(error: httpx.RequestError) -> str:
    return re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__


def path_of(*parts: str) -> str:
    """Return a path relative to the base URL. `parts` are percent-encoded, because an id may
    contain a slash."""
    return "/".join(quote(part, safe="") for part in parts)
