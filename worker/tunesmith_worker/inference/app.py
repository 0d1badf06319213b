"""Routes of the inference process."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import re
import secrets
from collections.abc import AsyncIterator
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .answers import Answer, Deliverer, Message, Receive, Send
from .aside import aside
from .device import Device, yield_cores
from .errors import ApiError, as_api_error
from .files import Registration, check_hash, check_name
from .pool import ModelPool
from .settings import InferenceSettings
from .yielding import Yielding

_ID = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
"""Pattern of the request ids that the API sends."""
_MAX_BODY = 32 << 20
"""Maximum size of a JSON request in bytes."""


def create_app(settings: InferenceSettings, device: Device) -> Starlette:
    pool = ModelPool(settings, device)
    expected = f"Bearer {settings.inference_token.get_secret_value()}".encode()

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.deliver = Deliverer()
        yield_cores(pool.device)
        tasks = [
            asyncio.create_task(_unload_idle(pool, settings.inference_idle_seconds)),
            asyncio.create_task(Yielding(pool, settings.inference_device).run()),
        ]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        pool.close()

    async def health(request: Request) -> Response:
        status = "waiting" if pool.waiting_for else "loading" if pool.is_loading else "ready"
        known = {"server": "tunesmith-inference", "status": status}
        if not _has_token(request.scope, expected):
            return JSONResponse(known)
        figures = [engine.figures() for engine in pool.engines]
        return JSONResponse(
            known
            | {
                "waiting_for": pool.waiting_for,
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
        missing = await pool.register(registration)
        if missing:
            return JSONResponse({"missing": missing}, 409)
        return JSONResponse({"id": registration.id})

    async def unregister(request: Request) -> Response:
        await pool.unregister(request.path_params["id"])
        return JSONResponse({"id": request.path_params["id"], "deleted": True})

    def completions(kind: Literal["chat", "text"]) -> Any:
        async def answer(request: Request) -> Response:
            body = await _json(request)
            if not isinstance(body, dict):
                raise ApiError(400, "the request must be a JSON object", code="invalid_request")
            deliver, request_id = request.app.state.deliver, _request_id(request)
            return _Streamed(Answer(kind, body, pool, deliver, request_id))

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
    app.add_middleware(_Token, expected=expected)
    return app


class _Streamed(Response):
    """Response that an `Answer` sends."""

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
            failed = as_api_error(error, self._answer.request_id)
            await failed.response()(scope, receive, send)


class _Token:
    def __init__(self, app: Any, expected: bytes) -> None:
        self._app, self._expected = app, expected

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        is_open = scope["type"] != "http" or scope["path"] == "/health"
        if is_open or _has_token(scope, self._expected):
            await self._app(scope, receive, send)
        else:
            refused = ApiError(401, "the inference token is wrong", code="invalid_api_key")
            await refused.response()(scope, receive, send)


def _has_token(scope: Message, expected: bytes) -> bool:
    given = dict(scope["headers"]).get(b"authorization", b"")
    return hmac.compare_digest(given, expected)


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
        content = b"".join(chunks)
        return await aside(len(content), json.loads, content)
    except ValueError as error:
        raise ApiError(400, f"the request is not JSON: {error}", code="invalid_request") from error


async def _on_error(request: Request, error: Exception) -> Response:
    return as_api_error(error, _request_id(request)).response()


def _request_id(request: Request) -> str:
    given = request.headers.get("x-request-id", "")
    return given if _ID.fullmatch(given) else f"req-{secrets.token_hex(8)}"


async def _unload_idle(pool: ModelPool, seconds: float) -> None:
    while True:
        await asyncio.sleep(min(seconds / 4, 10.0))
        await pool.unload_idle()
