"""FastAPI application: routers, error handlers, and the objects that all requests share."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Sequence
from functools import partial

from fastapi import APIRouter, FastAPI, Security
from fastapi.security import HTTPBearer
from starlette.routing import BaseRoute

from tunesmith_server.api import (
    adapters,
    chat,
    evaluations,
    events,
    files,
    fine_tuning,
    health,
    internal,
    internal_evaluations,
    job_create,
    job_links,
    jobs,
    me,
    models,
    organization,
    permissions,
    queue,
    recipe,
    samples,
    sessions,
    uploads,
    usage,
    workers,
)
from tunesmith_server.api.deps import State
from tunesmith_server.api.file_checks import FileChecks
from tunesmith_server.api.rate_limits import RateLimits
from tunesmith_server.api.single_flight import SingleFlight
from tunesmith_server.api.stream import EventHub
from tunesmith_server.core.database import Database
from tunesmith_server.core.errors import REFUSALS, install_error_handlers
from tunesmith_server.core.planes import limiters
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.core.settings import Settings
from tunesmith_server.core.storage import Storage
from tunesmith_server.inference.service import Inference
from tunesmith_server.scheduling.view import QueueView
from tunesmith_server.services.catalogue import served_models

from . import api_docs, installation, portal
from .janitor import Janitor
from .middleware import RequestEnvelope


def create_app(settings: Settings) -> FastAPI:
    """Build the API from `settings`. The database must already have the current schema. The app
    starts only if the database and the store belong to the same installation."""
    settings.prepare()
    database = Database(settings.database_url)
    storage = Storage(settings.storage_url)
    wake_ups = WakeUps(settings.broker_url)
    hub = EventHub(database)
    inference = Inference(settings, storage)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            await asyncio.to_thread(installation.ensure, database, storage)
        except Exception:
            database.dispose()
            raise
        janitor = Janitor(settings, database, storage, wake_ups)
        janitor.start()
        limiters()  # before the first request uses the default pool
        forgetting = inference.forget_deleted(partial(_existing_models, database))
        loops = (hub.run(), hub.progress.run(), hub.check_keys(), forgetting)
        tasks = [asyncio.create_task(loop) for loop in loops]
        yield
        hub.close()
        for task in tasks:
            task.cancel()
        await inference.close()
        await asyncio.to_thread(janitor.stop)
        wake_ups.close()
        database.dispose()

    app = FastAPI(
        title="Tunesmith",
        lifespan=lifespan,
        redirect_slashes=False,
        routes=all_routes(),
        docs_url=None,
        redoc_url=None,
    )
    app.state.tunesmith = State(
        settings=settings,
        database=database,
        storage=storage,
        wake_ups=wake_ups,
        hub=hub,
        inference=inference,
        completions=SingleFlight(),
        file_checks=FileChecks(storage),
        rate_limits=RateLimits(settings.requests_per_minute),
        queue_view=QueueView(database),
    )
    install_error_handlers(app)
    portal.install(app)
    api_docs.install(app)
    app.add_middleware(RequestEnvelope, max_upload_bytes=settings.max_file_bytes)
    app.add_middleware(portal.DefaultHeaders)
    return app


def _existing_models(database: Database, names: Sequence[str]) -> set[str]:
    with database.read() as session:
        return served_models.existing(session, names)


@functools.cache
def all_routes() -> list[BaseRoute]:
    """Build the routes once per process. FastAPI builds the validators of a route at the first
    request, and new routes would need new validators."""
    root = APIRouter()
    root.include_router(health.router, responses=REFUSALS)
    # For the OpenAPI document only: the routes check the key before they read the body.
    bearer = Security(HTTPBearer(auto_error=False))
    for api in (
        *(files, uploads, job_create, jobs, job_links, events, samples, fine_tuning, permissions),
        *(
            models,
            adapters,
            evaluations,
            chat,
            recipe,
            me,
            sessions,
            organization,
            queue,
            workers,
            usage,
        ),
    ):
        root.include_router(api.router, prefix="/v1", responses=REFUSALS, dependencies=[bearer])
    root.include_router(internal.enrollment, prefix="/internal")
    root.include_router(internal.router, prefix="/internal")
    root.include_router(internal_evaluations.router, prefix="/internal")
    return root.routes
