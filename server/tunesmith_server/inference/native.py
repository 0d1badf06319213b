"""Our own inference process: `python -m tunesmith_worker.inference`, as a child of the API or at
TUNESMITH_INFERENCE_URL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from urllib.parse import quote

import httpx

from tunesmith_schema import ErrorCode, StoredFile
from tunesmith_server.core.errors import NotFound, Unavailable
from tunesmith_server.core.planes import Plane, run_in
from tunesmith_server.core.storage import Storage

from .process import InferenceProcess
from .protocol import EngineStatus, ServedModel
from .upstream import error_of, new_client, refusal, unreachable

_STATUS_SECONDS = 1.5


class NativeEngine:
    """Client of the inference process at `url`, or of the child `process`, which the first request
    starts."""

    def __init__(
        self, storage: Storage, *, url: str = "", token: str = "",
        process: InferenceProcess | None = None,
    ) -> None:  # fmt: skip
        self._storage, self._process = storage, process
        self._at = (url, token)
        self._client = new_client(url, token) if url else None

    async def send(self, path: str, body: bytes, request_id: str) -> httpx.Response:
        headers = {"content-type": "application/json", "x-request-id": request_id}
        return await self._request("POST", f"/v1{path}", headers=headers, content=body)

    async def register(self, model: ServedModel) -> None:
        document = {
            "id": model.id,
            "base": model.base.id if model.base else model.id,
            "kind": model.kind,
            "files": [{"name": file.name, "sha256": file.sha256} for file in model.files],
        }
        reply = await self._request("POST", "/models", json=document)
        if reply.status_code == 409:
            missing = await _missing(reply)
            for file in model.files:
                if file.name in missing:
                    await self._put(model, file)
            reply = await self._request("POST", "/models", json=document)
        await _check(reply)

    async def forget(self, model_id: str) -> None:
        if self._process is None or self._process.url:
            reply = await self._request("DELETE", f"/models/{quote(model_id, safe='')}")
            await reply.aclose()

    async def status(self) -> EngineStatus:
        if self._process is not None and not self._process.url:
            return EngineStatus(status="not started", waiting_for=self._process.problem)
        try:
            client = await self._connected()
            reply = await client.get("/health", timeout=_STATUS_SECONDS)
            document = reply.raise_for_status().json()
            return EngineStatus(
                status=str(document["status"]), waiting_for=document.get("waiting_for")
            )
        except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
            return EngineStatus(status="unreachable", waiting_for=str(error)[:300])

    async def close(self) -> None:
        if self._process is not None:
            await self._process.stop()
        if self._client is not None:
            await self._client.aclose()

    async def _put(self, model: ServedModel, file: StoredFile) -> None:
        path = f"/models/{quote(model.id, safe='')}/files/{file.name}"
        headers = {"x-sha256": file.sha256, "content-length": str(file.bytes)}
        try:
            content = _pieces(self._storage, file)
            await _check(await self._request("PUT", path, headers=headers, content=content))
        except FileNotFoundError:
            raise NotFound(
                ErrorCode.CONTENT_MISSING,
                f"the server's storage has lost the file {file.name!r} of {model.id!r}",
                param="model",
                hint="restore the storage from a backup, or train the model again",
            ) from None

    async def _request(self, method: str, path: str, **options: object) -> httpx.Response:
        """Send a request. If the process ended before it received the request, start a new process
        and send the request once more. A request that the process had received is not repeated,
        because the request may have crashed the process."""
        for may_repeat in (True, False):
            client = await self._connected()
            request = client.build_request(method, path, **options)  # type: ignore[arg-type]  # httpx checks them
            process = self._process
            try:
                response = await client.send(request, stream=True)
                if process is not None:
                    assert isinstance(response.stream, httpx.AsyncByteStream)
                    response.stream = _WatchedStream(response.stream, process)
                return response
            except httpx.TransportError as error:
                if process is None or not may_repeat or not isinstance(error, httpx.ConnectError):
                    raise unreachable(self._at[0], error) from error
                await process.noticed_end()
        raise AssertionError("the second try returns or raises")

    async def _connected(self) -> httpx.AsyncClient:
        """Return a client for the running process; start the process if necessary."""
        if self._process is not None:
            at = await self._process.ensure()
            if at != self._at or self._client is None:
                old, self._at, self._client = self._client, at, new_client(*at)
                if old is not None:
                    await old.aclose()
        assert self._client is not None
        return self._client


class _WatchedStream(httpx.AsyncByteStream):
    """Body of a response from our own inference process. If the connection breaks, the stream waits
    for the end of the process, so that the next request starts a new process."""

    def __init__(self, stream: httpx.AsyncByteStream, process: InferenceProcess) -> None:
        self._stream, self._process = stream, process

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._stream:
                yield piece
        except httpx.TransportError:
            await self._process.noticed_end()
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _missing(reply: httpx.Response) -> set[str]:
    await reply.aread()
    await reply.aclose()
    try:
        names = reply.json()["missing"]
        return {str(name) for name in names}
    except (ValueError, KeyError, TypeError):
        raise Unavailable(
            ErrorCode.UNAVAILABLE, "the inference server refuses the model",
            hint="server and inference process must have the same version",
        ) from None  # fmt: skip


async def _check(reply: httpx.Response) -> None:
    if reply.is_success:
        await reply.aclose()
    else:
        raise refusal(reply, await error_of(reply))


async def _pieces(storage: Storage, file: StoredFile) -> AsyncIterator[bytes]:
    """Yield the content of a stored file in pieces; a thread reads each piece."""
    pieces = await run_in(Plane.CHAT, partial(storage.stream, file.sha256, 0, file.bytes))
    while piece := await run_in(Plane.CHAT, partial(next, pieces, b"")):
        yield bytes(piece)
