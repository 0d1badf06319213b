"""FastAPI dependencies of the routes: sessions, settings, and the caller's API key."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response
from fastapi.routing import APIRoute
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from tunesmith_schema import ErrorCode
from tunesmith_server.core.database import READ_ONLY, Database
from tunesmith_server.core.errors import Unauthorized
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.core.security import equal_secrets
from tunesmith_server.core.settings import Settings
from tunesmith_server.core.storage import Storage
from tunesmith_server.services import keys
from tunesmith_server.services.paging import Order

from .bounds import AfterQuery, BoundedRequest
from .stream import EventHub


@dataclass(frozen=True, kw_only=True)
class State:
    """Objects shared by all requests of one API process."""

    settings: Settings
    database: Database
    storage: Storage
    wake_ups: WakeUps
    hub: EventHub


def state_of(request: Request) -> State:
    state: State = request.app.state.tunesmith
    return state


# Dependencies that never block are `async`: FastAPI runs all others in a thread.
async def get_state(request: Request) -> State:
    return state_of(request)


StateDep = Annotated[State, Depends(get_state)]


async def get_session(state: StateDep) -> Session:
    """Return the session of the request's only transaction; `TransactionRoute` commits it."""
    return state.database.write()


async def get_reader(state: StateDep) -> Session:
    """Return a read-only session that never waits for a writer."""
    return state.database.read()


SessionDep = Annotated[Session, Depends(get_session)]
ReaderDep = Annotated[Session, Depends(get_reader)]

Endpoint = Callable[..., Any]  # Any: routes return different types
_ENDS_TRANSACTION = "_ends_transaction"


def _in_one_transaction(endpoint: Endpoint) -> Endpoint:
    """Wrap `endpoint` so that its own thread commits before the reply is sent. A commit in another
    thread would keep the transaction open longer."""
    if inspect.iscoroutinefunction(endpoint) or hasattr(endpoint, _ENDS_TRANSACTION):
        return endpoint

    @functools.wraps(endpoint)
    def run(**arguments: Any) -> Any:  # Any: the endpoint's own types
        sessions = [value for value in arguments.values() if isinstance(value, Session)]
        if not sessions:
            return endpoint(**arguments)
        (session,) = sessions
        with session, nullcontext() if session.info.get(READ_ONLY) else session.begin():
            return endpoint(**arguments)

    setattr(run, _ENDS_TRANSACTION, True)
    return run


class TransactionRoute(APIRoute):
    """Route that commits its session when the endpoint returns and rolls back on an error."""

    def __init__(self, path: str, endpoint: Endpoint, **options: Any) -> None:  # Any: FastAPI's own
        super().__init__(path, _in_one_transaction(endpoint), **options)


def _authenticate_caller(request: Request) -> None:
    with state_of(request).database.read() as session:
        request.state.caller = keys.authenticate(session, request.headers.get("authorization"))


def _check_worker_token(request: Request) -> None:
    expected = state_of(request).settings.worker_token.get_secret_value()
    token = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    if not expected or not equal_secrets(token, expected):
        raise Unauthorized(
            ErrorCode.INVALID_API_KEY,
            "the worker token is missing or wrong",
            hint="set TUNESMITH_WORKER_TOKEN to the content of worker-token in the server's data "
            "directory",
        )


def _guarded_by(check: Callable[[Request], None]) -> type[TransactionRoute]:
    """Return a route class that runs `check` before it reads the body, so that unauthorized uploads
    never reach the disk."""

    class Guarded(TransactionRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()  # Any: FastAPI's own signature

            async def check_first(request: Request) -> Response:
                await run_in_threadpool(check, request)
                return await handle(BoundedRequest(request.scope, request.receive))

            return check_first

    return Guarded


KeyRoute = _guarded_by(_authenticate_caller)
"""Route that requires an API key."""
WorkerRoute = _guarded_by(_check_worker_token)
"""Route that requires the workers' token; API keys are refused."""


async def get_caller(request: Request) -> str:
    """Id of the caller's API key, on a `KeyRoute`."""
    caller: str = request.state.caller
    return caller


CallerDep = Annotated[str, Depends(get_caller)]


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """Paging parameters of the list routes."""

    after: str | None
    limit: int
    order: Order


async def get_cursor(
    after: AfterQuery = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    order: Order = "desc",
) -> Cursor:
    return Cursor(after=after, limit=limit, order=order)


CursorDep = Annotated[Cursor, Depends(get_cursor)]
