"""Fakes of the server and of time. They know the wire format, not the SDK's internals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpx

from tunesmith import Client

Answer = httpx.Response | Exception


class Clock:
    """A clock that advances only in `sleep`."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.naps: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.time += seconds


class Script:
    """Returns its answers one after the other, repeats the last one, and records the requests."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.bodies: list[bytes] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        self.bodies.append(request.read())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class EmptyServer(Script):
    """Script for a server without files. A list of files is empty and uses no answer of the
    script."""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if (request.method, request.url.path) == ("GET", "/v1/files"):
            return httpx.Response(200, json=page())
        return super().__call__(request)


def client_of(
    handler: Callable[[httpx.Request], httpx.Response],
    clock: Clock | None = None,
    *,
    max_retries: int = 2,
) -> Client:
    client = Client(
        base_url="http://server.test/v1",
        api_key="sk-test",
        max_retries=max_retries,
        transport=httpx.MockTransport(handler),
    )
    time = clock or Clock()
    client._http.sleep, client._http.now = time.sleep, time.now
    return client


def job(state: str = "queued", **fields: Any) -> dict[str, Any]:  # Any: JSON
    return {
        "id": "ftjob-1",
        "object": "fine_tuning.job",
        "created_at": 1_700_000_000,
        "model": "tiny",
        "status": state,
        "training_file": "file-1",
        "hyperparameters": {},
        "seed": 7,
        "state": state,
        "recipe": {},
        **fields,
    }


def event(seq: int, message: str = "hello", **fields: Any) -> dict[str, Any]:  # Any: JSON
    return {
        "id": f"ftevent-1-{seq}",
        "object": "fine_tuning.job.event",
        "created_at": 1_700_000_000 + seq,
        "level": "info",
        "message": message,
        "seq": seq,
        **fields,
    }


def page(*items: dict[str, Any], has_more: bool = False) -> dict[str, Any]:  # Any: JSON
    return {"object": "list", "data": list(items), "has_more": has_more}


def refusal(status: int, *, headers: dict[str, str] | None = None, **error: Any) -> httpx.Response:
    body = {"message": "no", "type": "invalid_request_error", "param": None, "code": None, **error}
    return httpx.Response(status, json={"error": body}, headers=headers)


def sse(*seqs: int, done: dict[str, Any] | None = None) -> bytes:
    """Stream events with these numbers, then `done` if it is given."""
    text = "".join(f"id: {n}\nevent: event\ndata: {json.dumps(event(n))}\n\n" for n in seqs)
    if done is not None:
        text += f"event: done\ndata: {json.dumps(done)}\n\n"
    return text.encode()


class Breaking(httpx.SyncByteStream):
    """Body whose connection breaks after these chunks."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks: Iterable[bytes] = chunks

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks
        raise httpx.ReadError("connection reset")
