"""FastAPI dependencies of the routes: database sessions, settings, and the caller of a request."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response, params
from fastapi.routing import APIRoute
from pydantic import BaseModel
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, Upload
from tunesmith_server.core.database import READ_ONLY, Database
from tunesmith_server.core.errors import Unauthorized
from tunesmith_server.core.planes import Plane, run_in
from tunesmith_server.core.principal import Principal
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.core.security import equal_secrets
from tunesmith_server.core.settings import Settings
from tunesmith_server.core.storage import Storage
from tunesmith_server.identity import policy
from tunesmith_server.inference.service import Inference
from tunesmith_server.models import changes, scope
from tunesmith_server.scheduling.view import QueueView
from tunesmith_server.services import audit, keys
from tunesmith_server.services.leasing import worker_access
from tunesmith_server.services.leasing.worker_access import Worker
from tunesmith_server.services.pages import PageBuilder
from tunesmith_server.services.paging import Order

from . import large_bodies
from .audited import entry_of
from .bounds import AfterQuery, BoundedRequest
from .file_checks import FileChecks
from .rate_limits import RateLimits
from .single_flight import SingleFlight
from .stream import EventHub


@dataclass(frozen=True, kw_only=True)
class State:
    """Objects shared by all requests of one API process."""

    settings: Settings
    database: Database
    storage: Storage
    wake_ups: WakeUps
    hub: EventHub
    inference: Inference
    completions: SingleFlight[Upload]
    file_checks: FileChecks
    rate_limits: RateLimits
    queue_view: QueueView


def state_of(request: Request) -> State:
    state: State = request.app.state.tunesmith
    return state


# Dependencies that never block are `async`: FastAPI runs all others in a thread.
async def get_state(request: Request) -> State:
    return state_of(request)


StateDep = Annotated[State, Depends(get_state)]


async def get_session(state: StateDep, request: Request) -> Session:
    """Return a writable database session for the only transaction of the request.
    `TransactionRoute` commits the transaction."""
    return _limited(state.database.write(), request)


async def get_reader(state: StateDep, request: Request) -> Session:
    """Return a read-only database session that never waits for a writer."""
    return _limited(state.database.read(), request)


def _limited(session: Session, request: Request) -> Session:
    """Limit a database session to the project of a user's request; workers have no project."""
    principal: Principal | None = getattr(request.state, "principal", None)
    if principal is None:
        return session
    session.info[_USE] = principal.use
    session.info[_ENTRY] = getattr(request.state, "audit_entry", None)
    return scope.limit(session, principal.project)


def project_reader(state: State, principal: Principal) -> Session:
    """Return a read-only database session, limited to the caller's project, for a route with its
    own transactions."""
    return scope.limit(state.database.read(), principal.project)


def project_writer(state: State, principal: Principal) -> Session:
    """Return a writable database session, limited to the caller's project, for a route with its own
    transactions."""
    return scope.limit(state.database.write(), principal.project)


SessionDep = Annotated[Session, Depends(get_session)]
ReaderDep = Annotated[Session, Depends(get_reader)]

Endpoint = Callable[..., Any]  # Any: routes return different types
_ENDS_TRANSACTION = "_ends_transaction"
_ENTRY = "audit_entry"
"""Key in `session.info` whose value is the request's entry in the audit log."""
_USE = "use"
"""Key in `session.info` whose value is the caller's API key and project."""
_IS_BULK = "_is_bulk"


def bulk(endpoint: Endpoint) -> Endpoint:
    """Mark a route that transfers file contents, so that it runs in the thread pool for bulk
    transfers."""
    setattr(endpoint, _IS_BULK, True)
    return endpoint


def _in_one_transaction(endpoint: Endpoint, plane: Plane) -> Endpoint:
    """Wrap `endpoint` so that one thread of the pool `plane` calls `endpoint`, commits, and
    serializes the result. If a second thread did the commit, the transaction would stay open until
    the second thread is free."""
    if inspect.iscoroutinefunction(endpoint) or hasattr(endpoint, _ENDS_TRANSACTION):
        return endpoint
    if hasattr(endpoint, _IS_BULK):
        plane = Plane.BULK

    def run(arguments: dict[str, Any]) -> Any:  # Any: the endpoint's own types
        sessions = [value for value in arguments.values() if isinstance(value, Session)]
        if not sessions:
            return _serialized(endpoint(**arguments), arguments)
        (session,) = sessions
        if session.info.get(READ_ONLY):
            with session:
                result = endpoint(**arguments)
        else:
            with session, session.begin():
                result = _audited(session, endpoint, arguments)
                if plane is Plane.BULK and _USE in session.info:
                    keys.check_open(session, session.info[_USE])  # the body may have taken long
        return _serialized(result, arguments)

    @functools.wraps(endpoint)
    async def run_in_plane(**arguments: Any) -> Any:  # Any: the endpoint's own types
        return await run_in(plane, functools.partial(run, arguments))

    setattr(run_in_plane, _ENDS_TRANSACTION, True)
    return run_in_plane


def _audited(session: Session, endpoint: Endpoint, arguments: dict[str, Any]) -> Any:
    """Call `endpoint`, and append the request to the audit log in the same transaction."""
    entry: audit.Entry | None = session.info.get(_ENTRY)
    if entry is None:
        return endpoint(**arguments)
    watched = changes.watch(session)
    result = endpoint(**arguments)
    audit.append(session, entry, watched)
    return result


def _serialized(result: Any, arguments: dict[str, Any]) -> Any:  # Any: the endpoint's own types
    """Serialize a pydantic object in the route's thread. Without this function, FastAPI would
    validate the object a second time and block the event loop."""
    if not isinstance(result, BaseModel):
        return result
    response = Response(result.model_dump_json(), media_type="application/json")
    for value in arguments.values():
        if isinstance(value, Response):
            response.headers.raw.extend(value.headers.raw)
    return response


class TransactionRoute(APIRoute):
    """Route that commits its session when the endpoint returns and rolls back on an error."""

    plane = Plane.USERS

    def __init__(self, path: str, endpoint: Endpoint, **options: Any) -> None:  # Any: FastAPI's own
        super().__init__(path, _in_one_transaction(endpoint, self.plane), **options)


def _authenticate_in(
    plane: Plane,
) -> Callable[[Request], Coroutine[Any, Any, None]]:  # Any: a coroutine's own
    """Return a function that checks the API key in a thread of the pool `plane`."""

    async def authenticate(request: Request) -> None:
        def check() -> Principal:
            headers = request.headers
            with state_of(request).database.read() as session:
                return keys.authenticate(
                    session, headers.get("authorization"), headers.get("openai-project")
                )

        request.state.principal = await run_in(plane, check)

    return authenticate


async def _authenticate_worker(request: Request) -> None:
    def check() -> Worker:
        with state_of(request).database.read() as session:
            return worker_access.authenticate(session, request.headers.get("authorization"))

    request.state.worker = await run_in(Plane.WORKERS, check)


def has_worker_token(request: Request) -> bool:
    expected = state_of(request).settings.worker_token.get_secret_value()
    token = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    return bool(expected) and equal_secrets(token, expected)


async def _check_worker_token(request: Request) -> None:
    if not has_worker_token(request):
        raise Unauthorized(
            ErrorCode.INVALID_API_KEY,
            "the worker token is missing or wrong",
            hint="set TUNESMITH_WORKER_TOKEN to the content of worker-token in the server's data "
            "directory",
        )


async def _append_outside(request: Request, plane: Plane) -> None:
    """Append a request to the audit log before the response is sent. Use this function for a route
    without a write transaction, such as a download of weights."""
    entry: audit.Entry | None = request.state.audit_entry
    if entry is None or entry.recorded:
        return

    def append() -> None:
        with state_of(request).database.write.begin() as session:
            audit.append(session, entry)

    await run_in(plane, append)


def _guarded_by(
    check: Callable[[Request], Coroutine[Any, Any, None]], its_plane: Plane
) -> type[TransactionRoute]:
    """Return a route class that runs `check` before it reads the body, so that unauthorized uploads
    never reach the disk."""

    class Guarded(TransactionRoute):
        plane = its_plane

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()  # Any: FastAPI's own signature
            body = self.body_field
            is_form = body is not None and isinstance(body.field_info, params.Form)

            async def check_first(request: Request) -> Response:
                await check(request)
                if principal := getattr(request.state, "principal", None):
                    state_of(request).rate_limits.check(principal)
                    policy.check(principal, request.method, self.path, request.path_params)
                    request.state.audit_entry = entry_of(request, principal, self.path)
                bounded = BoundedRequest(request.scope, request.receive)
                if its_plane is Plane.WORKERS:
                    return await handle(bounded)
                async with large_bodies.admitted(bounded, is_form=is_form):
                    response = await handle(bounded)
                await _append_outside(request, its_plane)
                return response

            return check_first

    return Guarded


KeyRoute = _guarded_by(_authenticate_in(Plane.USERS), Plane.USERS)
"""Route that requires an API key."""
ChatRoute = _guarded_by(_authenticate_in(Plane.CHAT), Plane.CHAT)
"""Route that requires an API key, with its own thread pool for chat requests."""
EnrollRoute = _guarded_by(_check_worker_token, Plane.WORKERS)
"""Route that requires the workers' shared token; API keys are refused."""
WorkerRoute = _guarded_by(_authenticate_worker, Plane.WORKERS)
"""Route that requires the credential of an enrolled worker; API keys and the shared token are
refused."""


async def get_worker(request: Request) -> Worker:
    """Return the caller of a `WorkerRoute`."""
    worker: Worker = request.state.worker
    return worker


WorkerDep = Annotated[Worker, Depends(get_worker)]


async def get_principal(request: Request) -> Principal:
    """Return the caller of a `KeyRoute`."""
    principal: Principal = request.state.principal
    return principal


async def get_caller(request: Request) -> str:
    """Return the id of the caller's API key, on a `KeyRoute`."""
    caller: str = request.state.principal.key_id
    return caller


PrincipalDep = Annotated[Principal, Depends(get_principal)]
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


def send_page(page: PageBuilder) -> Response:
    """Return a page without a second validation of its items."""
    return Response(page.content(), media_type="application/json")


CursorDep = Annotated[Cursor, Depends(get_cursor)]
