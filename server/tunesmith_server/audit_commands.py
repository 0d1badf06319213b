"""`tunesmith audit`: show the audit log, and check that nobody has changed it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

from tunesmith_server.core.database import Database
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import AuditRow
from tunesmith_server.services import audit

Open = Callable[[Settings], Database]
"""Function that opens the database with the current schema."""


def add_to(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], open_database: Open
) -> list[argparse.ArgumentParser]:
    """Add the commands to a parser. Return the parsers of the commands, so that the caller can add
    the options that all commands share."""
    commands = verbs.add_parser("audit", help="show and verify the audit log").add_subparsers(
        required=True, metavar="VERB"
    )
    verify = commands.add_parser(
        "verify", help="check the hash of each entry; exit status 1 if a hash is wrong"
    )
    verify.add_argument(
        "--head", help="hash that an earlier `audit verify` printed; fail if no entry has this hash"
    )
    verify.set_defaults(run=lambda *given: _verify(open_database, *given))
    listing = commands.add_parser("list", help="list the entries, oldest first")
    listing.add_argument("--after", type=int, default=0, help="number of the last known entry")
    listing.set_defaults(run=lambda *given: _list(open_database, *given))
    return [verify, listing]


def _verify(open_database: Open, settings: Settings, arguments: argparse.Namespace) -> int:
    with open_database(settings).read() as session:
        verdict = audit.verify(session, arguments.head)
    if arguments.json:
        document = {
            "entries": verdict.entries,
            "head": verdict.head,
            "problem": verdict.problem,
        }
        sys.stdout.write(json.dumps(document) + "\n")
    elif verdict.problem:
        sys.stderr.write(
            f"error: {verdict.problem}; the first {verdict.entries} entries are correct\n"
        )
    else:
        sys.stdout.write(f"{verdict.entries} entries are correct, head {verdict.head}\n")
    return 1 if verdict.problem else 0


def _list(open_database: Open, settings: Settings, arguments: argparse.Namespace) -> None:
    with open_database(settings).read() as session:
        for row in audit.entries(session, arguments.after):
            sys.stdout.write((json.dumps(_document(row)) if arguments.json else _line(row)) + "\n")


def _document(row: AuditRow) -> dict[str, object]:
    return {column.name: getattr(row, column.name) for column in AuditRow.__table__.columns}


def _line(row: AuditRow) -> str:
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.at))
    caller = row.user_id or row.key_id or "on the host"
    named = " ".join(str(value) for value in row.target.values())
    return f"{row.seq}  {moment}  {caller}  {row.address or '-'}  {row.action}  {named}"
