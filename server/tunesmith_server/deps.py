"""What routes ask for: sessions, settings, and who is calling."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response
from fastapi.routing import APIRoute
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from tunesmith_schema import ErrorCode

from .database import Database
from .errors import Unauthorized
from .queue import WakeUps
from .security import same
from .services import keys
from .services.paging import Order
from .settings import Settings
from .storage import Storage
from .stream import EventHub


@dataclass(frozen=True, kw_only=True)
class State:
    """What one API process holds open."""

    settings: Settings
    database: Database
    storage: Storage
    wake_ups: WakeUps
    hub: EventHub


def get_state(request: Request) -> State:
    state: State = request.app.state.tunesmith
    return state


StateDep = Annotated[State, Depends(get_state)]


def get_session(state: StateDep) -> Iterator[Session]:
    """One request is one transaction, committed before the reply leaves (scope="function")."""
    with state.database.write.begin() as session:
        yield session


def get_reader(state: StateDep) -> Iterator[Session]:
    """A session that never waits for a writer and never writes."""
    with state.database.read() as session:
        yield session


SessionDep = Annotated[Session, Depends(get_session, scope="function")]
ReaderDep = Annotated[Session, Depends(get_reader, scope="function")]


def _recognise_caller(request: Request) -> None:
    with get_state(request).database.read() as session:
        key = keys.recognise(session, request.headers.get("authorization"))
    request.state.caller = key.id


def _check_worker_token(request: Request) -> None:
    expected = get_state(request).settings.worker_token.get_secret_value()
    given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    if not expected or not same(given, expected):
        raise Unauthorized(
            ErrorCode.INVALID_API_KEY,
            "the worker token is missing or wrong",
            hint="set TUNESMITH_WORKER_TOKEN to the content of worker-token in the data directory",
        )


def _guarded_by(check: Callable[[Request], None]) -> type[APIRoute]:
    """A route that runs `check` before it reads the body, so that strangers fill no disk."""

    class Guarded(APIRoute):
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


def get_caller(request: Request) -> str:
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


def get_cursor(
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    order: Order = "desc",
) -> Cursor:
    return Cursor(after=after, limit=limit, order=order)


CursorDep = Annotated[Cursor, Depends(get_cursor)]
