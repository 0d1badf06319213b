"""What routes ask for: sessions, settings, and who is calling."""

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
from tunesmith_server.core.security import same
from tunesmith_server.core.settings import Settings
from tunesmith_server.core.storage import Storage
from tunesmith_server.services import keys
from tunesmith_server.services.paging import Order

from .stream import EventHub


@dataclass(frozen=True, kw_only=True)
class State:
    """What one API process holds open."""

    settings: Settings
    database: Database
    storage: Storage
    wake_ups: WakeUps
    hub: EventHub


def state_of(request: Request) -> State:
    state: State = request.app.state.tunesmith
    return state


# Dependencies are `async` where they do not wait: FastAPI sends each of the others to a thread.
async def get_state(request: Request) -> State:
    return state_of(request)


StateDep = Annotated[State, Depends(get_state)]


async def get_session(state: StateDep) -> Session:
    """One request is one transaction: `TransactionRoute` ends it."""
    return state.database.write()


async def get_reader(state: StateDep) -> Session:
    """A session that never waits for a writer and never writes."""
    return state.database.read()


SessionDep = Annotated[Session, Depends(get_session)]
ReaderDep = Annotated[Session, Depends(get_reader)]

Endpoint = Callable[..., Any]  # Any: routes return whatever they like
_ENDS_TRANSACTION = "_ends_transaction"


def _in_one_transaction(endpoint: Endpoint) -> Endpoint:
    """`endpoint` in the thread that also commits: before the reply leaves, and without waiting for
    another thread while others wait for the transaction to end."""
    if inspect.iscoroutinefunction(endpoint) or hasattr(endpoint, _ENDS_TRANSACTION):
        return endpoint

    @functools.wraps(endpoint)
    def run(**given: Any) -> Any:  # Any: what the endpoint takes and returns
        sessions = [value for value in given.values() if isinstance(value, Session)]
        if not sessions:
            return endpoint(**given)
        (session,) = sessions
        with session, nullcontext() if session.info.get(READ_ONLY) else session.begin():
            return endpoint(**given)

    setattr(run, _ENDS_TRANSACTION, True)
    return run


class TransactionRoute(APIRoute):
    """Commits the route's session once its function has returned; an error rolls it back."""

    def __init__(self, path: str, endpoint: Endpoint, **options: Any) -> None:  # Any: FastAPI's own
        super().__init__(path, _in_one_transaction(endpoint), **options)


def _recognise_caller(request: Request) -> None:
    with state_of(request).database.read() as session:
        request.state.caller = keys.recognise(session, request.headers.get("authorization"))


def _check_worker_token(request: Request) -> None:
    expected = state_of(request).settings.worker_token.get_secret_value()
    given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    if not expected or not same(given, expected):
        raise Unauthorized(
            ErrorCode.INVALID_API_KEY,
            "the worker token is missing or wrong",
            hint="set TUNESMITH_WORKER_TOKEN to the content of worker-token in the data directory",
        )


def _guarded_by(check: Callable[[Request], None]) -> type[TransactionRoute]:
    """A route that runs `check` before it reads the body, so that strangers fill no disk."""

    class Guarded(TransactionRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()  # Any: FastAPI's own signature

            async def check_first(request: Request) -> Response:
                await run_in_threadpool(check, request)
                return await handle(request)

            return check_first

    return Guarded


KeyRoute = _guarded_by(_recognise_caller)
"""Needs an API key."""
WorkerRoute = _guarded_by(_check_worker_token)
"""Needs the token that workers share; API keys do not open it."""


async def get_caller(request: Request) -> str:
    """Id of the API key that calls, on a `KeyRoute`."""
    caller: str = request.state.caller
    return caller


CallerDep = Annotated[str, Depends(get_caller)]


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """`after`, `limit`, `order`: how every list is paged."""

    after: str | None
    limit: int
    order: Order


async def get_cursor(
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    order: Order = "desc",
) -> Cursor:
    return Cursor(after=after, limit=limit, order=order)


CursorDep = Annotated[Cursor, Depends(get_cursor)]
