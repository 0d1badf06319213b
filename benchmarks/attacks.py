"""Attack a running service: `python -m benchmarks.attacks [--only ATTACK ...]`.

Starts the real API and broker in a temporary folder. During each attack, a separate process
requests `/healthz` and sends the reports of a running job. The benchmark measures the peak memory
of the API. Prints one JSON line per attack. The exit status is 1 if a result misses its required
value.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .service_parts import attack_probe
from .service_parts.attacks import ATTACKS, Attack
from .service_parts.installation import installation
from .service_parts.machine import facts
from .service_parts.process_use import watched

MAX_P99_MS = 1000.0
MAX_GROWTH_MB = 105.0
"""Largest allowed growth of the API's memory, in MB (100 MiB are 104.9 MB)."""
MAX_CREATE_P99_MS = 30.0


def measure(name: str, attack: Callable[[Attack], dict[str, Any]]) -> dict[str, Any]:  # Any: JSON
    with (
        tempfile.TemporaryDirectory(prefix="tunesmith-attack-") as folder,
        installation(Path(folder)) as service,
    ):
        prepared = Attack.prepare(service)
        with (
            attack_probe.running(service, prepared.claim) as probe,
            watched(service.api_pid) as use,
        ):
            probe.start()
            figures = attack(prepared)
            latencies = probe.stop()
    line = {"attack": name, **figures, **latencies, "rss_growth_mb": use.rss_growth_mb}
    line["passed"] = (
        line["healthz_p99_ms"] < MAX_P99_MS
        and line["report_p99_ms"] < MAX_P99_MS
        and use.rss_growth_mb < MAX_GROWTH_MB
        and figures.get("create_p99_ms", 0.0) < MAX_CREATE_P99_MS
    )
    return line


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    arguments = parser.parse_args()
    passed = True
    for name in arguments.only:
        line = measure(name, ATTACKS[name])
        passed &= line["passed"]
        print(json.dumps({"benchmark": "attacks", **facts(), **line}), flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
