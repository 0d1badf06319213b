"""docs/reference/performance.md says what the committed results say, and says it of a GPU's too."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.report.__main__ import DOCS, RESULTS, page, plots
from benchmarks.report.plots import draw

AGAIN = "run: python -m benchmarks.report"


def test_the_page_is_what_the_results_give() -> None:
    assert (DOCS / "performance.md").read_text() == page(RESULTS), AGAIN


def test_every_plot_on_the_page_is_there_and_shows_these_results() -> None:
    shown = set(re.findall(r"\(images/([\w.-]+)\)", page(RESULTS)))
    made = plots(RESULTS)
    assert shown == made.keys() == {path.name for path in (DOCS / "images").glob("*.svg")}
    for name, bars in made.items():
        assert bars.digest() in (DOCS / "images" / name).read_text(), AGAIN


def test_asking_for_help_writes_nothing() -> None:
    page_file = DOCS / "performance.md"
    before = page_file.stat().st_mtime_ns
    asked = [sys.executable, "-m", "benchmarks.report", "--help"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=DOCS.parents[1])
    assert "Write docs/reference/performance.md" in done.stdout
    assert page_file.stat().st_mtime_ns == before


def test_without_a_gpu_the_page_names_the_open_figures(tmp_path: Path) -> None:
    copied(tmp_path)
    text = page(tmp_path)
    assert "Nothing has been measured on a GPU yet" in text
    assert "| llama-3.1-8b: tokens/s | at least 13,500 |" in text


def test_a_gpus_results_become_tables_and_a_plot(tmp_path: Path) -> None:
    copied(tmp_path)
    (tmp_path / "gpu-some-card.json").write_text(json.dumps(results(tiny=False)))
    (tmp_path / "gpu-cpu-tiny.json").write_text(json.dumps(results(tiny=True)))
    text = page(tmp_path)
    assert "Nothing has been measured" not in text
    assert text.count("## Some Card") == 1
    assert "| llama-3.1-8b: tokens/s | at least 13,500 | 14,000 | met |" in text
    assert (
        "| llama-3.1-8b, no-recompute: speed relative to stock | at least 1.5 | 1.4 | **missed** |"
        in text
    )
    assert "| qwen2.5-1.5b: tokens/s | at least 46,000 | - | open |" in text
    assert "| llama-3.1-8b | no-recompute | ours | 14,000 | 1.40x | 40.0 |" in text
    assert "the device was busy 91% of the time (share" in text
    assert "```\n 60.0 %  gemm\n```" in text
    assert "| llama-8b/rms_norm | 0.1 | 3,600 GB/s | 86% | yes | 2.5x |" in text
    assert "| llama-3.2-1b/bf16 | 1.1 | `o_proj.lora_A` | yes |" in text
    assert "| speed | qwen2.5-1.5b/ours/defaults/1 | took more than 90 s |" in text
    (name,) = plots(tmp_path).keys() - {"training-on-a-cpu.svg"}
    assert f"(images/{name})" in text
    draw(plots(tmp_path)[name], tmp_path / name)
    assert plots(tmp_path)[name].digest() in (tmp_path / name).read_text()


def test_every_file_of_results_is_on_the_page() -> None:
    text = page(RESULTS) + (DOCS / "models.md").read_text().replace("benchmarks/results/", "")
    names = {path.name for path in RESULTS.glob("*.json") if not path.name.startswith("gpu-")}
    assert {name for name in names if f"`{name}`" not in text} == set()


def test_what_has_no_file_yet_is_said_to_be_open(tmp_path: Path) -> None:
    copied(tmp_path)
    text = page(tmp_path)
    for module in (
        "layouts",
        "plan",
        "precision --only loss",
        "precision --only cost",
        "checkpoint",
    ):
        assert f"**Open**: no result of `python -m benchmarks.{module}` yet" in text


def test_layouts_and_the_memory_plan_become_tables_with_their_bars(tmp_path: Path) -> None:
    copied(tmp_path)
    (tmp_path / "layouts.json").write_text(json.dumps(LAYOUTS))
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    text = page(tmp_path)
    assert "benchmarks.layouts` yet" not in text
    assert "Worst of 2: slower 6.2% (bar 5%: **missed**), cost 1.1% (bar 2%: met)." in text
    assert "| tiny | even-16 | 4 | padded | padded | 0.0% | 1.1% |" in text
    assert "| 12m | ragged-8-128 | 16 | packed | padding_free | 6.2% | 0.4% |" in text
    assert "benchmarks.plan` yet" not in text
    assert "Worst: tensors 11.4% (bar 10%: **missed**), resident 9.0% (bar 20%: met)." in text
    assert "| lora, 4 x 256 | half | 110.0 | 100.0 | +10.0% | +0.3% | +9.0% |" in text
    assert "| full, 1 x 2048 | all | 88.6 | 100.0 | -11.4% | +0.0% | - |" in text


@pytest.mark.parametrize("newest", ["first", "last"])
def test_the_first_step_is_the_newest_runs_by_kind(tmp_path: Path, newest: str) -> None:
    copied(tmp_path)
    entries = json.loads((RESULTS / "service.json").read_text())
    one = {"first_step_seconds": 0.72, "each": [0.72, 0.64, 0.9], "part_seconds": {}}
    kinds = {"warm": one, "without": one | {"first_step_seconds": 7.3}}
    added = {
        key: entries[0][key] for key in ("benchmark", "cpu", "cores", "python", "versions")
    } | {
        "at": "2027-01-01T00:00:00+00:00",
        "commit": "abc",
        "first_step": kinds | {"wall_seconds": 3.0, "idle_share_of_all_cores": 0.5},
    }
    entries = [added, *entries] if newest == "first" else [*entries, added]
    (tmp_path / "service.json").write_text(json.dumps(entries))
    text = page(tmp_path)
    assert "(2027-01-01, commit abc, 50% of the cores idle)" in text
    assert "| a warm trainer is ready | 0.7 s | 0.6 s |" in text
    assert "| the worker has no warm trainer | 7.3 s | 0.6 s |" in text
    assert "| latency of creating a job at 100 requests/s: p50 / p99 | 6.35 / 14.22 ms |" in text


def test_a_first_step_from_before_there_were_kinds_had_no_warm_trainer(tmp_path: Path) -> None:
    copied(tmp_path)
    entries = json.loads((RESULTS / "service.json").read_text())
    (tmp_path / "service.json").write_text(json.dumps(entries[:1]))
    assert "| the worker has no warm trainer | 4.8 s | 4.3 s |" in page(tmp_path)


def copied(folder: Path) -> None:
    for name in ("sft.json", "service.json"):
        (folder / name).write_text((RESULTS / name).read_text())


LAYOUTS = {
    "torch": "2.13.0",
    "bars": {"slower": 0.05, "cost": 0.02},
    "slower": 0.0621,
    "cost": 0.011,
    "cells": [
        {
            "model": "tiny",
            "lengths": "even-16",
            "rows": 4,
            "chosen": "padded",
            "fastest": "padded",
            "seconds": {"padded": 0.01},
            "slower": 0.0,
            "cost": 0.011,
            "trial_steps": 12,
            "trial_seconds": 0.2,
        },
        {
            "model": "12m",
            "lengths": "ragged-8-128",
            "rows": 16,
            "chosen": "packed",
            "fastest": "padding_free",
            "seconds": {"padding_free": 1.0, "packed": 1.0621},
            "slower": 0.0621,
            "cost": 0.004,
            "trial_steps": 9,
            "trial_seconds": 9.1,
        },
    ],
}
MIB = 2**20
PLAN = {
    "benchmark": "plan",
    "worst_error": 0.114,
    "worst_corrected_error": 0.003,
    "worst_rss_error": 0.09,
    "bars": {"tensors": 0.1, "rss": 0.2},
    "cpu": "some CPU",
    "torch": "2.13.0",
    "settings": [
        {
            "tuning": "lora",
            "rows": 4,
            "length": 256,
            "checkpointing": "half",
            "predicted": 110 * MIB,
            "tensors": 100 * MIB,
            "error": 0.1,
            "corrected_error": 0.003,
            "rss_error": 0.09,
        },
        {
            "tuning": "full",
            "rows": 1,
            "length": 2048,
            "checkpointing": True,
            "predicted": 88.6 * MIB,
            "tensors": 100 * MIB,
            "error": -0.114,
            "corrected_error": 0.0,
            "rss_error": None,
        },
    ],
}


def results(*, tiny: bool) -> dict[str, Any]:  # Any: JSON
    run = {"tokens_per_second": 14_000.0, "peak_gib": 40.0, "model_tflop_per_s": 490.0}
    return {
        "benchmark": "gpu",
        "device": "Some Card",
        "at": "2026-11-20T12:00:00+00:00",
        "commit": "abc",
        "python": "3.12",
        "versions": {"torch": "2.11.0"},
        "tiny": tiny,
        "kernels": {
            "ceilings": {"copy_gb_per_s": 4200.0, "bf16_tflop_per_s": 700.0},
            "llama-8b/rms_norm": {
                "ms": {"ours": 0.1, "eager": 0.25},
                "gb_per_s": 3600.0,
                "ratio": 0.857,
                "bound": "bandwidth",
                "barred": True,
                "speed_to_eager": 2.5,
            },
        },
        "parity": {
            "llama-3.2-1b/bf16": {"worst": 1.1, "worst_tensor": "o_proj.lora_A", "passed": True}
        },
        "speed": {
            "llama-3.1-8b/ours/no-recompute/1": run,
            "llama-3.1-8b/ours/profile/1": {
                "device_busy_share": 0.91,
                "top_shown": "share of the busy time",
                "top": [" 60.0 %  gemm"],
            },
            "llama-3.1-8b/stock/no-recompute/1": run | {"tokens_per_second": 10_000.0},
        },
        "errors": [
            {
                "part": "speed",
                "case": "qwen2.5-1.5b/ours/defaults/1",
                "error": "took more than 90 s",
            }
        ],
        "skipped": [],
    }
