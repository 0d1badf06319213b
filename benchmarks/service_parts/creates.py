"""Measure the latency of concurrent create requests, with and without list requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from .connections import Target
from .installation import BASE_MODEL, Installation, installation
from .load import Load, run
from .process_use import idle_share, machine_seconds, watched

PATH = "/v1/fine_tuning/jobs"


def measure(folder: Path) -> dict[str, Any]:
    """Measure 100 create requests a second for 30 s: first alone, then together with 20 list
    requests a second."""
    with installation(folder) as service:
        return measure_on(service, per_second=100, seconds=30)


def measure_on(service: Installation, *, per_second: float, seconds: float) -> dict[str, Any]:
    """Measure latencies in ms: first of create requests alone, then of create and list requests at
    the same time."""
    target = Target(host=service.host, port=service.port, key=service.api_key)
    create = Load(
        name="create",
        method="POST",
        path=PATH,
        body={
            "model": BASE_MODEL,
            "training_file": service.new_file(),
            "suffix": "benchmark",
            "metadata": {"team": "support", "ticket": "4812"},
            "recipe": {"lora": {"r": 16}, "learning_rate": 2e-4, "max_steps": 100},
        },
        per_second=per_second,
        seconds=seconds,
    )
    listing = Load(name="list", method="GET", path=PATH, per_second=per_second / 5, seconds=seconds)
    run(target, [replace(create, name="warm-up", seconds=1)])
    figures: dict[str, Any] = {}
    for name, loads in (("alone", [create]), ("beside_lists", [create, listing])):
        before = machine_seconds()
        with watched(service.api_pid) as use:
            figures[name] = run(target, loads)
        figures[name]["api_cpu_share"] = round(use.cpu_seconds / seconds, 2)
        figures[name]["idle_share_of_all_cores"] = idle_share(before, machine_seconds())
    return figures
