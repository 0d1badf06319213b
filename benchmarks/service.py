"""Load tests of the service: `python -m benchmarks.service [--only PART ...]`.

Starts the processes of the service in a temporary folder, with SQLite and the embedded broker, and
runs the tests. Prints one JSON line; progress goes to standard error. docs/reference/benchmarks.md
explains each result.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .service_parts import creates, fan_out, first_step, lists, protocols, uploads
from .service_parts.machine import facts
from .service_parts.process_use import idle_share, machine_seconds

PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {  # Any: JSON
    "create": creates.measure,
    "upload": uploads.measure,
    "sse": fan_out.measure,
    "lists": lists.measure,
    "protocols": protocols.measure,
    "first_step": first_step.measure,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    arguments = parser.parse_args()
    line: dict[str, Any] = {"benchmark": "service", **facts()}
    for name in arguments.only:
        sys.stderr.write(f"{name} ...\n")
        began, before = time.monotonic(), machine_seconds()
        with tempfile.TemporaryDirectory(prefix="tunesmith-benchmark-") as folder:
            figures = PARTS[name](Path(folder))
        figures["wall_seconds"] = round(time.monotonic() - began, 1)
        figures["idle_share_of_all_cores"] = idle_share(before, machine_seconds())
        sys.stderr.write(f"{name}: {json.dumps(figures)}\n")
        line[name] = figures
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
