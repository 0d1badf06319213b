"""docs/performance.md says what the committed results say, and says it of a GPU's too."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    done = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=DOCS.parent)
    assert "Writes docs/performance.md" in done.stdout
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
        "| llama-3.1-8b, no-recompute: speed on stock's | at least 1.5 | 1.4 | **missed** |" in text
    )
    assert "| qwen2.5-1.5b: tokens/s | at least 46,000 | - | open |" in text
    assert "| llama-3.1-8b | no-recompute | ours | 14,000 | 1.40x | 40.0 |" in text
    assert "the device was busy 91% of it (share" in text
    assert "```\n 60.0 %  gemm\n```" in text
    assert "| llama-8b/rms_norm | 0.1 | 3,600 GB/s | 86% | yes | 2.5x |" in text
    assert "| llama-3.2-1b/bf16 | 1.1 | `o_proj.lora_A` | yes |" in text
    assert "| speed | qwen2.5-1.5b/ours/defaults/1 | took more than 90 s |" in text
    (name,) = plots(tmp_path).keys() - {"training-on-a-cpu.svg"}
    assert f"(images/{name})" in text
    draw(plots(tmp_path)[name], tmp_path / name)
    assert plots(tmp_path)[name].digest() in (tmp_path / name).read_text()


def copied(folder: Path) -> None:
    for name in ("sft.json", "service.json"):
        (folder / name).write_text((RESULTS / name).read_text())


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
