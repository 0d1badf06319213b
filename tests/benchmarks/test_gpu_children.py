"""benchmarks.gpu outlives what it measures: no failure takes another case's result along."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.children import ROOT, Job, run_all
from benchmarks.gpu.record import Record

CHILD = "tests.benchmarks.gpu_child"


def job(*cases: str, part: str = "kernels", seconds: float = 20) -> Job:
    return Job(part=part, module=CHILD, cases=cases, seconds=seconds)


def results_of(folder: Path, *jobs: Job, minutes: float = 1.0) -> dict[str, Any]:  # Any: JSON
    record = Record(folder, ["kernels", "parity"], tiny=True, minutes=minutes)
    run_all(jobs, record, time.monotonic() + 60 * minutes, {})
    (file,) = folder.glob("gpu-*.json")
    written: dict[str, Any] = json.loads(file.read_text())
    assert written == record.results
    assert record.failed == bool(written["errors"])
    return written


def errors(results: dict[str, Any]) -> dict[str, str]:  # Any: JSON
    return {one["case"]: one["error"] for one in results["errors"]}


def test_a_module_names_its_own_cases(tmp_path: Path) -> None:
    results = results_of(tmp_path, job())
    assert list(results["kernels"]) == ["a", "b"]
    assert results["errors"] == results["skipped"] == []


def test_what_raises_or_is_wrong_is_recorded_and_the_rest_runs(tmp_path: Path) -> None:
    results = results_of(tmp_path, job("a", "raises", "wrong", "b"))
    assert list(results["kernels"]) == ["a", "wrong", "b"]
    assert errors(results) == {
        "raises": "ValueError: planted",
        "wrong": "check failed; the figures are recorded",
    }


def test_a_process_that_dies_takes_its_case_alone(tmp_path: Path) -> None:
    results = results_of(tmp_path, job("a", "dies", "b"), job("c", part="parity"))
    assert list(results["kernels"]) == ["a", "b"]
    assert list(results["parity"]) == ["c"]
    assert "exit status 7: illegal memory access" in errors(results)["dies"]


def test_a_part_that_cannot_be_imported_leaves_the_others(tmp_path: Path) -> None:
    results = results_of(tmp_path, job("broken-import"), job("c", part="parity"))
    assert list(results["parity"]) == ["c"]
    assert "ImportError: no such thing in ." in errors(results)["broken-import"]
    assert str(ROOT) not in json.dumps(results)


def test_a_case_that_hangs_is_killed_and_the_next_one_runs(tmp_path: Path) -> None:
    results = results_of(tmp_path, job("hangs", "b", seconds=1.5))
    assert list(results["kernels"]) == ["b"]
    assert errors(results) == {"hangs": "took more than 1.5 s"}


def test_when_the_time_is_up_the_rest_is_skipped_and_named(tmp_path: Path) -> None:
    begun = time.monotonic()
    jobs = (job("a", "hangs", "b"), job("c", part="parity"), job(part="parity"))
    results = results_of(tmp_path, *jobs, minutes=0.04)
    assert time.monotonic() - begun < 20
    assert list(results["kernels"]) == ["a"]
    skipped = [(one["part"], one["case"]) for one in results["skipped"]]
    assert skipped == [
        ("kernels", "hangs"),
        ("kernels", "b"),
        ("parity", "c"),
        ("parity", "all of it"),
    ]
    assert {one["why"] for one in results["skipped"]} == {"time limit of 0.04 minutes"}
    assert not results["errors"]
