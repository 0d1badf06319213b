"""The worker's commands: `python -m tunesmith_worker worker [drain]|demo`."""

from __future__ import annotations

import os
import signal
import sys

if __name__ == "__main__":  # before the other imports, which take a second
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import argparse
import json
import logging

from pydantic import ValidationError

from tunesmith_schema.model_dirs import missing_folders
from tunesmith_schema.queue import LIGHT_QUEUE, TRAIN_QUEUE
from tunesmith_schema.unsafe import first_error
from tunesmith_worker.rundir.errors import error_text
from tunesmith_worker.supervisor.settings import WorkerSettings, unknown_variables

log = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tunesmith", description="Tunesmith's worker commands.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    worker = commands.add_parser(
        "worker", help="start a worker that trains jobs or validates files"
    )
    worker.add_argument(
        "--json", action="store_true", help="print the start message in JSON format"
    )
    worker.add_argument(
        "action",
        nargs="?",
        choices=("drain",),
        help="drain: tell this host's training workers to claim no new job and to release the "
        "current job at a resume point; the workers keep running without a job until you stop them",
    )
    worker.add_argument("--wait", action="store_true", help="drain: wait until no worker has a job")
    worker.add_argument(
        "--queue",
        choices=(TRAIN_QUEUE, LIGHT_QUEUE),
        default=TRAIN_QUEUE,
        help="train (default): train jobs; light: validate data files",
    )
    commands.add_parser("demo", help="create and fine-tune a small model", add_help=False)
    arguments, rest = parser.parse_known_args(argv)
    if arguments.command == "demo":
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from tunesmith_worker.demo.__main__ import (
            main as demo,  # imports torch, matplotlib and the SDK
        )

        return int(demo(rest))
    if rest:
        parser.error(f"unrecognised arguments: {' '.join(rest)}")
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    from tunesmith_worker.supervisor.app import run_worker
    from tunesmith_worker.supervisor.shutdown import drain

    os.umask(0o077)  # only the owner can read data and adapters
    for warning in unknown_variables():
        log.warning("%s", warning)
    try:
        settings = WorkerSettings()
        if arguments.action == "drain":
            return drain(settings, wait=arguments.wait)
        settings.check()
        for warning in missing_folders(settings.base_model_folders()):
            log.warning("%s", warning)
        start = {"event": "starting", "queue": arguments.queue, "server_url": settings.server_url}
        text = f"serving queue {arguments.queue} for {settings.server_url}"
        sys.stdout.write((json.dumps(start) if arguments.json else text) + "\n")
        sys.stdout.flush()
        run_worker(settings, arguments.queue)
    except ValidationError as error:
        sys.stderr.write(f"error: {first_error(error)}\n")
        return 1
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error_text(error)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
