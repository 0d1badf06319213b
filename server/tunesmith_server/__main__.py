"""`python -m tunesmith_server serve|api|migrate|keys`: the server's commands."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

from pydantic import ValidationError

from tunesmith_schema.model_dirs import missing_folders
from tunesmith_schema.unsafe import first_error
from tunesmith_server.core.database import Database
from tunesmith_server.core.errors import ServiceError
from tunesmith_server.core.settings import Settings, unknown_variables
from tunesmith_server.services import keys

from . import migrate
from .embedded import StartError, check_parts, check_tls, serve

log = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    given = {
        name: value
        for name in ("data_dir", "host", "port")
        if (value := getattr(arguments, name, None)) is not None
    }
    os.umask(0o077)  # keys, data and adapters are their owner's alone
    for said in unknown_variables():
        log.warning("%s", said)
    try:
        return int(arguments.run(Settings(**given), arguments) or 0)
    except ValidationError as error:
        sys.stderr.write(f"error: {first_error(error)}\n")
    except (StartError, ServiceError, ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tunesmith", description="Tunesmith's server commands.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    everything = verbs.add_parser("serve", help="API, broker and workers in one process tree")
    alone = verbs.add_parser("api", help="the API alone; needs a migrated database and a broker")
    for verb in (everything, alone):
        _data_dir(verb)
        verb.add_argument("--host", help="address to listen on (127.0.0.1)")
        verb.add_argument("--port", type=int, help="port to listen on (8000)")
    everything.set_defaults(run=lambda settings, arguments: serve(settings, as_json=arguments.json))
    alone.set_defaults(run=_api)

    schema = verbs.add_parser("migrate", help="bring the database schema up to date")
    _data_dir(schema)
    schema.set_defaults(run=_migrate)

    key_verbs = verbs.add_parser("keys", help="API keys").add_subparsers(
        required=True, metavar="VERB"
    )
    create = key_verbs.add_parser("create", help="make a key; it is shown once")
    create.add_argument("name", nargs="?", default="unnamed", help="whose key it is")
    create.set_defaults(run=_create_key)
    listing = key_verbs.add_parser("list", help="all keys, without their secrets")
    listing.set_defaults(run=_list_keys)
    revoke = key_verbs.add_parser("revoke", help="make a key invalid")
    revoke.add_argument("id")
    revoke.set_defaults(run=_revoke_key)
    for verb in (create, listing, revoke):
        _data_dir(verb)
    for verb in (everything, alone, schema, create, listing, revoke):
        verb.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _data_dir(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--data-dir", type=Path, help="where everything lives (.tunesmith)")


def _api(settings: Settings, arguments: argparse.Namespace) -> None:
    from .app import create_app  # the other verbs do without the web framework
    from .listener import make_listener

    settings.prepare()
    if not settings.broker_url:
        raise StartError("TUNESMITH_BROKER_URL is not set: `tunesmith serve` brings its own broker")
    for missing in missing_folders(settings.base_model_folders()):
        log.warning("%s", missing)
    check_tls(settings, "127.0.0.1")  # only others know by which name they reach us
    check_parts(settings)
    if not migrate.is_current(settings.database_url):
        raise StartError("the database schema is not current: run `tunesmith migrate` first")
    # Uploads are spooled beside where they end up: /tmp is small on many hosts.
    spool = settings.data_dir / "tmp"
    spool.mkdir(exist_ok=True)
    tempfile.tempdir = str(spool)
    url = f"{settings.url}/v1"
    _print(arguments, {"event": "starting", "base_url": url}, f"listening on {url}")
    listener = make_listener(create_app(settings), settings)
    # A full collection would walk all that was imported: 80 ms in which nobody is served.
    gc.freeze()
    # A thread that comes back from the database waits so long for one that computes; 5 ms, Python's
    # own choice, ten times a request, makes a queue out of a burst.
    sys.setswitchinterval(0.0005)
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C, said again once all is closed
        listener.run()
    if not listener.started:
        raise StartError(f"the API could not listen on {settings.host}:{settings.port}")


def _migrate(settings: Settings, arguments: argparse.Namespace) -> None:
    settings.prepare()
    migrate.upgrade(settings.database_url)
    _print(arguments, {"schema": "current"}, "the database schema is current")


def _database(settings: Settings) -> Database:
    settings.prepare()
    if not migrate.is_current(settings.database_url):
        migrate.upgrade(settings.database_url)
    return Database(settings.database_url)


def _create_key(settings: Settings, arguments: argparse.Namespace) -> None:
    with _database(settings).write.begin() as session:
        row, key = keys.create(session, arguments.name)
        shown = {"id": row.id, "name": row.name, "key": key}
    _print(arguments, shown, f"{key}\n  {row.id}, {row.name}; it is not shown again")


def _list_keys(settings: Settings, arguments: argparse.Namespace) -> None:
    with _database(settings).read() as session:
        rows = [
            {
                "id": row.id,
                "name": row.name,
                "prefix": row.prefix,
                "created_at": int(row.created_at),
                "revoked_at": int(row.revoked_at) if row.revoked_at else None,
            }
            for row in keys.list_all(session)
        ]
    lines = [
        f"{row['id']}  {row['prefix']}...  "
        f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(row['created_at']))}  "  # type: ignore[arg-type]  # an int in a mixed dict
        f"{'revoked' if row['revoked_at'] else 'valid  '}  {row['name']}"
        for row in rows
    ]
    _print(arguments, rows, "\n".join(lines) or "no keys yet")


def _revoke_key(settings: Settings, arguments: argparse.Namespace) -> None:
    with _database(settings).write.begin() as session:
        row = keys.revoke(session, arguments.id)
        shown = {"id": row.id, "name": row.name, "revoked": True}
    _print(arguments, shown, f"revoked {shown['id']} ({shown['name']})")


def _print(arguments: argparse.Namespace, document: object, text: str) -> None:
    sys.stdout.write((json.dumps(document) if arguments.json else text) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
