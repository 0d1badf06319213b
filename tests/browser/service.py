"""A service with a seeded database, for browsers: the app on a real listener, in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select

from tunesmith_server import migrate
from tunesmith_server.app import create_app
from tunesmith_server.core.database import Database
from tunesmith_server.core.settings import Settings
from tunesmith_server.core.storage import Storage
from tunesmith_server.models import ApiKeyRow
from tunesmith_server.services import keys

from ..server.live import listening
from . import callers
from .seeding import World, fill
from .seeding.world import MODEL


@dataclass(frozen=True, kw_only=True)
class Service:
    """A running service."""

    url: str
    """Address without a path."""
    key: str
    """API key of the user `ann`, who owns all jobs."""
    settings: Settings
    database: Database
    storage: Storage
    world: World
    secrets: callers.Secrets = field(default_factory=dict)

    def profile(self, caller: callers.Caller) -> dict[str, Any]:  # Any: JSON
        """Return the browser profile of a caller; `ann` gets hers when she signs in."""
        return {} if caller == "nobody" else callers.cookies(self.secrets, caller, self.url)


def new_settings(folder: Path) -> Settings:
    """Create the folders and the database of a new service."""
    (folder / "models" / MODEL).mkdir(parents=True)
    config = '{"max_position_embeddings": 2048}'
    (folder / "models" / MODEL / "config.json").write_text(config)
    (folder / "models" / MODEL / "model.safetensors").write_bytes(bytes(4096))
    settings = Settings(
        data_dir=folder / "data",
        broker_url="memory://",
        model_dirs=str(folder / "models"),
        janitor_seconds=3600,
        inference_child=True,  # no process starts before the first question
    )
    settings.prepare()
    migrate.upgrade(settings.database_url)
    return settings


@contextmanager
def serving(settings: Settings, *, filled: bool = True) -> Iterator[Service]:
    """Start the service. A first start fills the database, unless `filled` is False."""
    app = create_app(settings)
    state = app.state.tunesmith
    key = "tunesk-of-the-browser-tests-0123456789abcdef"
    with listening(app) as url:
        with state.database.write.begin() as session:
            owner = session.scalar(select(ApiKeyRow.id).where(ApiKeyRow.name == "ann"))
            first = owner is None
            if first:
                owner = keys.create(session, "ann", key, role="admin")[0].id
        world, secrets = World(), callers.Secrets()
        if filled and first:
            assert owner is not None, "the key was just created"
            world = fill(settings, state.database, state.storage, owner)
            with state.database.write.begin() as session:
                secrets = callers.create(session, settings, owner)
        yield Service(
            url=url.rstrip("/"), key=key, settings=settings, database=state.database,
            storage=state.storage, world=world, secrets=secrets,
        )  # fmt: skip
