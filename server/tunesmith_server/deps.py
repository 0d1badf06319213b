"""What routes ask for: sessions, settings, and who is calling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Query, Request
from sqlalchemy.orm import Session

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


def get_caller(state: StateDep, authorization: Annotated[str | None, Header()] = None) -> str:
    """Id of the API key that calls. Raises 401 without a valid one."""
    with state.database.read() as session:
        return keys.recognise(session, authorization).id


def check_worker_token(
    state: StateDep, authorization: Annotated[str | None, Header()] = None
) -> None:
    """Workers present one shared token; API keys do not open /internal."""
    given = (authorization or "").removeprefix("Bearer ").strip()
    if not same(given, state.settings.worker_token.get_secret_value()):
        raise Unauthorized(
            ErrorCode.INVALID_API_KEY,
            "the worker token is missing or wrong",
            hint="set TUNESMITH_WORKER_TOKEN to the content of worker-token in the data directory",
        )


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
