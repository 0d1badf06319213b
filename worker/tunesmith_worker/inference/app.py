"""Routes of the inference process."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
from collections.abc import AsyncIterator
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .answers import Answer, Deliverer, Message, Receive, Send
from .device import Device
from .errors import ApiError, as_api_error
from .files import Registration, check_hash, check_name
from .pool import ModelPool
from .settings import InferenceSettings

log = logging.getLogger(__name__)

_MAX_BODY = 32 << 20
"""Maximum bytes of a request with JSON."""


def create_app(settings: InferenceSettings, device: Device) -> Starlette:
    pool = ModelPool(settings, device)
    token = settings.inference_token.get_secret_value()

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.deliver = Deliverer()
        unloader = asyncio.create_task(_unload_idle(pool, settings.inference_idle_seconds))
        yield
        unloader.cancel()
        pool.close()

    async def health(request: Request) -> Response:
        figures = [engine.figures() for engine in pool.engines]
        status = "waiting" if device.waiting_for else "loading" if pool.is_loading else "ready"
        return JSONResponse(
            {
                "server": "tunesmith-inference",
                "status": status,
                "waiting_for": device.waiting_for,
                "models": pool.names,
                "loaded": pool.loaded_names,
                "running": sum(one.running for one in figures),
                "queued": sum(one.queued for one in figures),
                "cached_tokens": sum(one.live_tokens for one in figures),
                "cancelled": sum(one.cancelled for one in figures),
            }
        )

    async def put_file(request: Request) -> Response:
        check_name(request.path_params["name"])
        sha256 = check_hash(request.headers.get("x-sha256"))
        await pool.files.put(request.stream(), sha256)
        return JSONResponse({"name": request.path_params["name"], "sha256": sha256})

    async def register(request: Request) -> Response:
        registration = Registration.read(await _json(request))
        missing = pool.register(registration)
        if missing:
            return JSONResponse({"missing": missing}, 409)
        return JSONResponse({"id": registration.id})

    async def unregister(request: Request) -> Response:
        pool.unregister(request.path_params["id"])
        return JSONResponse({"id": request.path_params["id"], "deleted": True})

    def completions(kind: Literal["chat", "text"]) -> Any:
        async def answer(request: Request) -> Response:
            body = await _json(request)
            if not isinstance(body, dict):
                raise ApiError(400, "the request must be a JSON object", code="invalid_request")
            return _Streamed(Answer(kind, body, pool, request.app.state.deliver))

        return answer

    app = Starlette(
        lifespan=lifespan,
        routes=[
            Route("/health", health, methods=["GET"]),
            Route("/models", register, methods=["POST"]),
            Route("/models/{id:path}/files/{name}", put_file, methods=["PUT"]),
            Route("/models/{id:path}", unregister, methods=["DELETE"]),
            Route("/v1/chat/completions", completions("chat"), methods=["POST"]),
            Route("/v1/completions", completions("text"), methods=["POST"]),
        ],
        exception_handlers={Exception: _on_error, ApiError: _on_error},
    )
    app.add_middleware(_Token, token=token)
    return app


class _Streamed(Response):
    """Response that writes its answer itself."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.background = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        started = False

        async def note(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._answer(receive, note)
        except Exception as error:
            if started:
                raise
            failed = as_api_error(error)
            if failed.status >= 500:
                log.warning("a completion failed: %s", error)
            await failed.response()(scope, receive, send)


class _Token:
    """Middleware that refuses requests without the bearer token."""

    def __init__(self, app: Any, token: str) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                refused = ApiError(401, "the inference token is wrong", code="invalid_api_key")
                await refused.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _json(request: Request) -> Any:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > _MAX_BODY:
            raise ApiError(
                413, f"the request has more than {_MAX_BODY:,} bytes", code="request_too_large"
            )
        chunks.append(chunk)
    try:
        return json.loads(b"".join(chunks))
    except ValueError as error:
        raise ApiError(400, f"the request is not JSON: {error}", code="invalid_request") from error


async def _on_error(request: Request, error: Exception) -> Response:
    return as_api_error(error).response()


async def _unload_idle(pool: ModelPool, seconds: float) -> None:
    while True:
        await asyncio.sleep(min(seconds / 4, 10.0))
        pool.unload_idle()
