"""Functions that read a run directory, and rows for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tunesmith_schema import EventKind, RunEvent, RunResult

QUESTIONS = [
    {"question": f"How much is {a} plus {b}?", "answer": f"{a} plus {b} is {a + b}."}
    for a in range(4)
    for b in range(4)
]


def read_events(folder: Path) -> list[RunEvent]:
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [RunEvent.model_validate_json(line) for line in lines]


def event_data(folder: Path, kind: EventKind) -> list[dict[str, Any]]:  # Any: JSON
    return [dict(event.data) for event in read_events(folder) if event.kind == kind]


def losses(folder: Path) -> list[Any]:  # Any: JSON
    metrics = event_data(folder, EventKind.METRICS)
    return [point["train_loss"] for point in metrics if "train_loss" in point]


def read_result(folder: Path) -> RunResult:
    return RunResult.model_validate_json((folder / "result.json").read_bytes())
