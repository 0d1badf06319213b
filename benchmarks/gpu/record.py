"""Results file of the GPU benchmarks, written after every case so that a killed run keeps its
results.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..service_parts.machine import commit, cpu_model
from .bars import judge


class Record:
    def __init__(self, folder: Path, parts: list[str], *, tiny: bool, minutes: float) -> None:
        self._folder = folder
        self._written: Path | None = None
        self._results: dict[str, Any] = {
            "benchmark": "gpu",
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "processor": cpu_model(),
            "tiny": tiny,
            "minutes": minutes,
            **{part: {} for part in parts},
            "errors": [],
            "skipped": [],
            "bars": [],
        }

    @property
    def path(self) -> Path:
        device = str(self._results.get("device", "unknown")).lower().replace(" ", "-")
        return self._folder / f"gpu-{device}{'-tiny' if self._results['tiny'] else ''}.json"

    @property
    def results(self) -> Mapping[str, Any]:
        return self._results

    @property
    def failed(self) -> bool:
        """True if a case raised an error or failed its check. Skipped cases and missed bars do not
        count as failures."""
        return bool(self._results["errors"])

    def add_facts(self, facts: Mapping[str, Any]) -> None:
        self._results |= facts

    def add(self, part: str, case: str, result: dict[str, Any], seconds: float) -> None:
        """Record a result. A result with `passed` False is recorded as failed."""
        self._results[part][case] = result | {"case_seconds": round(seconds, 1)}
        if result.get("passed") is False:
            self.fail(part, case, "check failed; the figures are recorded")
        else:
            self._write(f"{part}: {case} {_short(result)}")

    def fail(self, part: str, case: str, error: str) -> None:
        self._results["errors"].append({"part": part, "case": case, "error": error})
        self._write(f"{part}: {case} FAILED: {error}")

    def skip(self, part: str, case: str, why: str = "") -> None:
        """Record that a case did not run. `why` is the reason; by default, the time limit was
        reached."""
        why = why or f"time limit of {self._results['minutes']:g} minutes"
        self._results["skipped"].append({"part": part, "case": case, "why": why})
        self._write(f"{part}: {case} skipped: {why}")

    def _write(self, line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        self._results["bars"] = [] if self._results["tiny"] else judge(self._results)
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".part")
        partial.write_text(json.dumps(self._results, indent=1) + "\n")
        partial.replace(self.path)
        if self._written is not None and self._written != self.path:
            self._written.unlink()  # named before the first process reported its device
        self._written = self.path


def _short(result: dict[str, Any]) -> str:
    keys = (
        *("ms", "gb_per_s", "tflop_per_s", "ratio", "tokens_per_second", "peak_gib", "worst"),
        *("fp32_error", "tests", "failed", "error", "overhead", "relative"),
        *("seconds_per_step", "sync_share", "adapter_on_base"),
        *("device_busy_share", "copy_gb_per_s", "bf16_tflop_per_s", "refused", "passed"),
    )
    return " ".join(f"{key}={result[key]}" for key in keys if key in result)
