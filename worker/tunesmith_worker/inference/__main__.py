"""The inference process: `python -m tunesmith_worker.inference [--host HOST] [--port PORT]`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import sys

from pydantic import ValidationError

from tunesmith_schema.unsafe import first_error
from tunesmith_worker.rundir.process import die_with_supervisor, quick_imports

from .settings import InferenceSettings, set_environment

_SECONDS_TO_END = 5
"""Maximum seconds after SIGTERM in which unfinished answers may continue."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tunesmith_worker.inference",
        description="Answer chat and text completions for Tunesmith's API.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0 (default): any free port")
    arguments = parser.parse_args(argv)
    die_with_supervisor()
    set_environment()
    os.umask(0o077)  # only the owner can read adapters
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)

    with quick_imports():
        import uvicorn

        from .app import create_app
        from .device import choose_device

    try:
        settings = InferenceSettings()
        settings.check()
    except ValidationError as error:
        sys.stderr.write(f"error: {first_error(error)}\n")
        return 1
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    listener = socket.create_server((arguments.host, arguments.port), backlog=512)
    app = create_app(settings, choose_device(settings.inference_device))
    host, port = listener.getsockname()[:2]
    sys.stdout.write(json.dumps({"listening": f"http://{host}:{port}"}) + "\n")
    sys.stdout.flush()
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=_SECONDS_TO_END,
    )
    uvicorn.Server(config).run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
