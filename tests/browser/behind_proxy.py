"""The services of compose.yml and compose.tls.yml as processes: API, PostgreSQL, Valkey, Caddy."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tunesmith_server.core.database import Database
from tunesmith_server.core.settings import Settings
from tunesmith_server.core.storage import Storage
from tunesmith_server.services import keys

from ..deploy.compose_file import read_project
from ..deploy.dockerfile import ROOT
from ..deploy.host import Host
from .seeding import fill
from .seeding.world import MODEL
from .service import Service

KEY = "tunesk-of-the-proxy-tests-0123456789abcdef"


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """A running project with a seeded database."""

    service: Service
    """Its URL is the proxy's."""
    plain_url: str
    """Address of the proxy without TLS."""
    host: Host

    @property
    def api_url(self) -> str:
        """Address of the API itself, which only this machine reaches."""
        return f"http://{self.host.container('api').address}:8000"

    def client(self, *, source: str = "127.0.0.1") -> httpx.Client:
        """Return a client of the proxy that connects from an address of this machine."""
        # Caddy signed the certificate with an authority of its own.
        transport = httpx.HTTPTransport(verify=False, local_address=source)
        return httpx.Client(base_url=self.service.url, transport=transport, timeout=20)


@contextmanager
def deployed(folder: Path) -> Iterator[Deployed]:
    """Set up the project as docs/how-to/deploy.md does, with the domain `localhost`."""
    docker, models = folder / "docker", folder / "models"
    shutil.copytree(ROOT / "docker", docker, ignore=shutil.ignore_patterns(".env"))
    (models / MODEL).mkdir(parents=True)
    (models / MODEL / "config.json").write_text('{"max_position_embeddings": 2048}')
    path = {"PATH": "/usr/bin:/bin"}
    subprocess.run([docker / "make-env.sh", models], env=path, check=True, capture_output=True)
    subnet = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250) + 1}"
    with (docker / ".env").open("a") as env:
        env.write("COMPOSE_FILE=compose.yml:compose.tls.yml\nTUNESMITH_DOMAIN=localhost\n")
        env.write(f"TUNESMITH_SUBNET={subnet}.0/24\n")
    host = Host(read_project(docker), subnet)
    try:
        host.start("caddy")
        ports = host.container("caddy").ports
        service = _seeded(host, f"https://localhost:{ports[443]}")
        found = Deployed(service=service, plain_url=f"http://localhost:{ports[80]}", host=host)
        with found.client() as client:
            host.until(lambda: _answers(client), "an answer of the proxy")
        yield found
        service.database.dispose()
    finally:
        host.close()


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def _seeded(host: Host, url: str) -> Service:
    """Fill the API's database and store, from this process."""
    api = host.container("api")
    settings = Settings(
        data_dir=Path(api.translate("/var/lib/tunesmith")),
        database_url=api.environment["TUNESMITH_DATABASE_URL"],
        broker_url="memory://",
    )
    database, storage = Database(settings.database_url), Storage(settings.storage_url)
    with database.write.begin() as session:
        owner = keys.create(session, "ann", KEY, role="admin")[0].id
    world = fill(settings, database, storage, owner)
    return Service(
        url=url, key=KEY, settings=settings, database=database, storage=storage, world=world
    )
