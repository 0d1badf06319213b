"""Command line of the server: `python -m tunesmith_server serve|api|migrate|gc|keys|audit`."""

from __future__ import annotations

import os
import signal
import sys

if __name__ == "__main__":  # before the other imports, which take a second
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import argparse
import gc
import json
import logging
import tempfile
import time
from pathlib import Path

from pydantic import ValidationError

from tunesmith_schema.log_lines import LOG_FORMAT, secure_handlers
from tunesmith_schema.model_dirs import missing_folders
from tunesmith_schema.unsafe import first_error
from tunesmith_server.core.database import Database
from tunesmith_server.core.errors import ServiceError
from tunesmith_server.core.principal import VERBS
from tunesmith_server.core.settings import Settings, variable_warnings
from tunesmith_server.core.storage import Storage
from tunesmith_server.models import DEFAULT_PROJECT, ProjectRow
from tunesmith_server.services import audit, keys
from tunesmith_server.services.audit import Entry

from . import audit_commands, garbage, installation, migrate
from .embedded import (
    INTERRUPTED,
    StartError,
    check_backends,
    check_installation,
    check_tls,
    serve,
)

log = logging.getLogger(__name__)

MAX_NAMES = 20
"""Maximum number of blob names that `gc` prints."""


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    secure_handlers(logging.getLogger())
    logging.getLogger("alembic").setLevel(logging.WARNING)
    overrides = {
        name: value
        for name in ("data_dir", "host", "port")
        if (value := getattr(arguments, name, None)) is not None
    }
    os.umask(0o077)  # only the owner may read keys, data and adapters
    for warning in variable_warnings():
        log.warning("%s", warning)
    try:
        return int(arguments.run(Settings(**overrides), arguments) or 0)
    except ValidationError as error:
        sys.stderr.write(f"error: {first_error(error)}\n")
    except (StartError, ServiceError, ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tunesmith", description="Tunesmith's server commands.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    everything = verbs.add_parser("serve", help="API, broker and workers in one process tree")
    alone = verbs.add_parser("api", help="only the API; needs a migrated database and a broker")
    for verb in (everything, alone):
        _data_dir(verb)
        verb.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
        verb.add_argument("--port", type=int, help="port to listen on (default: 8000)")
    everything.set_defaults(run=lambda settings, arguments: serve(settings, as_json=arguments.json))
    alone.set_defaults(run=_api)

    schema = verbs.add_parser("migrate", help="upgrade the database schema")
    _data_dir(schema)
    schema.set_defaults(run=_migrate)

    key_verbs = verbs.add_parser("keys", help="create, list and revoke API keys").add_subparsers(
        required=True, metavar="VERB"
    )
    create = key_verbs.add_parser("create", help="create a key; it is shown only once")
    create.add_argument(
        "name", nargs="?", default="unnamed", help="name of the key, for example its owner"
    )
    create.add_argument(
        "--role", choices=list(VERBS), default="member",
        help="rights of the key (default: member); admin may do everything in all projects",
    )  # fmt: skip
    create.add_argument("--project", default=DEFAULT_PROJECT, help="id of the key's project")
    create.add_argument("--days", type=float, help="days until the key expires")
    create.set_defaults(run=_create_key)
    listing = key_verbs.add_parser("list", help="list all keys, without their secrets")
    listing.set_defaults(run=_list_keys)
    revoke = key_verbs.add_parser("revoke", help="revoke a key")
    revoke.add_argument("id")
    revoke.set_defaults(run=_revoke_key)
    for verb in (create, listing, revoke):
        _data_dir(verb)
    collection = verbs.add_parser("gc", help="delete stored content that nothing refers to")
    _data_dir(collection)
    choice = collection.add_mutually_exclusive_group()
    choice.add_argument("--dry-run", action="store_true", help="only show what would be deleted")
    choice.add_argument(
        "--adopt",
        action="store_true",
        help="mark the store as belonging to this database; delete nothing",
    )
    collection.set_defaults(run=_gc)
    audit_verbs = audit_commands.add_to(verbs, _database)
    for verb in audit_verbs:
        _data_dir(verb)
    usual = (everything, alone, schema, create, listing, revoke, collection, *audit_verbs)
    for verb in usual:
        verb.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _data_dir(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--data-dir", type=Path, help="data directory (default: .tunesmith)")


def _api(settings: Settings, arguments: argparse.Namespace) -> int:
    from .app import create_app  # the other commands do not need the web framework
    from .listener import make_listener

    settings.prepare()
    if not settings.broker_url:
        raise StartError(
            "TUNESMITH_BROKER_URL is not set: set it, or run `tunesmith serve` with its own broker"
        )
    for warning in missing_folders(settings.base_model_folders()):
        log.warning("%s", warning)
    check_tls(settings, "127.0.0.1")  # the API does not know its public name
    check_backends(settings)
    if not migrate.is_current(settings.database_url):
        raise StartError("the database schema is not current: run `tunesmith migrate` first")
    check_installation(settings)
    # Spool uploads in the data directory: /tmp is small on many hosts.
    spool = settings.data_dir / "tmp"
    spool.mkdir(exist_ok=True)
    tempfile.tempdir = str(spool)
    url = f"{settings.url}/v1"
    _print(arguments, {"event": "starting", "base_url": url}, f"listening on {url}")
    listener = make_listener(create_app(settings), settings)
    # Exclude imported objects from garbage collection: a full pass blocks requests for 80 ms.
    gc.freeze()
    # After each database call, a thread waits up to this long for the GIL, about ten times per
    # request. With Python's default of 5 ms, requests queue up in a burst.
    sys.setswitchinterval(0.0005)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        listener.run()
    except KeyboardInterrupt:  # uvicorn sends SIGINT again after shutdown
        return 0 if listener.started else INTERRUPTED
    if not listener.started:
        raise StartError(
            f"cannot listen on {settings.host}:{settings.port}: the log line above has the reason; "
            "try another --port"
        )
    return 0


def _migrate(settings: Settings, arguments: argparse.Namespace) -> None:
    settings.prepare()
    migrate.upgrade(settings.database_url)
    _print(arguments, {"schema": "current"}, "the database schema is current")


def _gc(settings: Settings, arguments: argparse.Namespace) -> None:
    settings.prepare()
    check_backends(settings)
    if not migrate.is_current(settings.database_url):
        raise StartError("the database schema is not current: run `tunesmith migrate` first")
    database, storage = Database(settings.database_url), Storage(settings.storage_url)
    try:
        if arguments.adopt:
            owner = installation.adopt(database, storage)
            text = f"the store {storage.url} belongs to installation {owner} from now on"
            _print(arguments, {"installation": owner, "storage_url": storage.url}, text)
            return
        found = (garbage.find if arguments.dry_run else garbage.collect)(database, storage)
    finally:
        database.dispose()
    verb = "would delete" if arguments.dry_run else "deleted"
    names = sorted(found.sizes)[:MAX_NAMES]
    lines = [f"{verb} {len(found.sizes)} unused blobs, {found.bytes:,} bytes"]
    lines += [f"  {name}  {found.sizes[name]:,} bytes" for name in names]
    if len(names) < len(found.sizes):
        lines.append(f"  and {len(found.sizes) - len(names)} more")
    _print(
        arguments,
        {
            "dry_run": arguments.dry_run,
            "count": len(found.sizes),
            "bytes": found.bytes,
            "names": names,
        },
        "\n".join(lines),
    )


def _database(settings: Settings) -> Database:
    settings.prepare()
    if not migrate.is_current(settings.database_url):
        migrate.upgrade(settings.database_url)
    return Database(settings.database_url)


def _create_key(settings: Settings, arguments: argparse.Namespace) -> None:
    days = arguments.days
    with _database(settings).write.begin() as session:
        if session.get(ProjectRow, arguments.project) is None:
            raise ValueError(f"no project {arguments.project!r}: see `tunesmith projects list`")
        row, key = keys.create(
            session,
            arguments.name,
            role=arguments.role,
            project_id=arguments.project,
            expires_at=None if days is None else time.time() + days * 86_400,
        )
        shown = {"id": row.id, "name": row.name, "role": row.role, "key": key}
        audit.append(session, Entry(action="keys create", target={"key_id": row.id}))
    _print(
        arguments,
        shown,
        f"{key}\n  {row.id}, {row.name} ({row.role}); store the key now, it is not shown again",
    )


def _list_keys(settings: Settings, arguments: argparse.Namespace) -> None:
    with _database(settings).read() as session:
        rows = [
            {
                "id": row.id,
                "name": row.name,
                "prefix": row.prefix,
                "role": row.role,
                "project_id": row.project_id,
                "created_at": int(row.created_at),
                "revoked_at": int(row.revoked_at) if row.revoked_at else None,
            }
            for row in keys.list_all(session)
        ]
    lines = [
        f"{row['id']}  {row['prefix']}...  "
        f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(row['created_at']))}  "  # type: ignore[arg-type]  # an int in a mixed dict
        f"{'revoked' if row['revoked_at'] else 'valid  '}  {row['role']:6}  {row['name']}"
        for row in rows
    ]
    _print(arguments, rows, "\n".join(lines) or "no keys yet")


def _revoke_key(settings: Settings, arguments: argparse.Namespace) -> None:
    with _database(settings).write.begin() as session:
        row = keys.revoke(session, arguments.id)
        shown = {"id": row.id, "name": row.name, "revoked": True}
        audit.append(session, Entry(action="keys revoke", target={"key_id": row.id}))
    _print(arguments, shown, f"revoked {shown['id']} ({shown['name']})")


def _print(arguments: argparse.Namespace, document: object, text: str) -> None:
    sys.stdout.write((json.dumps(document) if arguments.json else text) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
