"""Write docs/reference/performance.md and its plots from benchmarks/results/."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

from ..gpu.bars import speed
from ..gpu.speed_plan import REAL
from .chat import beside_training, chat
from .cpu import name_of, newest, service, training
from .engine import (
    layouts,
    memory_plan,
    precisions,
    resume_points,
    self_check,
)
from .families import family_speeds, memory_families
from .gpu import SIDES, gpus, slug
from .grpo import grpo, learning
from .plots import Bars, draw
from .portal import portal
from .rollouts import engines, rollouts
from .schedule import schedule
from .tables import Result

ROOT = Path(__file__).parents[2]
RESULTS, DOCS = ROOT / "benchmarks" / "results", ROOT / "docs" / "reference"
WIDTH = 120

INTRO = """# How fast it is

Speed and memory compared with stock TRL and transformers, and figures of the service. Generated
from `benchmarks/results/*.json` by `python -m benchmarks.report`; do not edit. The
[benchmarks page](benchmarks.md) explains each benchmark. A ratio is the figure of Tunesmith divided
by the figure of stock TRL or transformers; both are measured alternately on one machine. Tunesmith
is better if a speed ratio is above 1 or a memory ratio is below 1. A bar is a value that a figure
must reach.
"""


def main() -> None:
    (DOCS / "performance.md").write_text(page(RESULTS))
    for name, bars in plots(RESULTS).items():
        draw(bars, DOCS / "images" / name)


def page(results: Path) -> str:
    cpu = load(results / "sft.json")
    parts = [
        INTRO,
        gpus(on_gpus(results)),
        training(cpu),
        family_speeds(recorded(results / "families.json")),
        layouts(recorded(results / "layouts.json")),
        memory_plan(recorded(results / "plan.json")),
        memory_families(recorded(results / "plan_families.json")),
        precisions(recorded(results / "precision.json") or []),
        resume_points(recorded(results / "checkpoint.json")),
        self_check(recorded(results / "self_check.json")),
        grpo(recorded(results / "grpo.json") or []),
        learning(
            recorded(results / "grpo_learns.json") or [],
            recorded(results / "grpo_learns_vllm.json") or [],
        ),
        rollouts(recorded(results / "rollout.json") or []),
        engines(
            recorded(results / "rollout_engines.json") or [],
            recorded(results / "rollout_sync.json") or [],
        ),
        chat(recorded(results / "chat.json") or []),
        beside_training(recorded(results / "chat_training.json") or []),
        service(load(results / "service.json")),
        schedule(recorded(results / "schedule.json") or []),
        portal(recorded(results / "portal.json") or []),
    ]
    return "\n".join(wrapped(line) for line in "\n".join(parts).splitlines()) + "\n"


def wrapped(line: str) -> str:
    """Break a long line of text; rows of tables stay whole."""
    if line.startswith("|") or len(line) <= WIDTH:
        return line
    indent = "  " if line.startswith("- ") else ""
    return fill(
        line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def plots(results: Path) -> dict[str, Bars]:
    """Return the plots of the page, keyed by file name."""
    return {"training-on-a-cpu.svg": cpu_plot(load(results / "sft.json"))} | dict(
        gpu_plots(on_gpus(results))
    )


def cpu_plot(results: list[Result]) -> Bars:
    rows = newest(results)
    return Bars(
        title="Training on a CPU: our speed / speed of stock TRL",
        unit="tokens per CPU-second, ours / theirs",
        groups=tuple(name_of(result).replace("; ", "\n") for result in rows),
        series={"ours": tuple(result["speed_ratio"] for result in rows)},
        marks=tuple(result["speed_bar"] for result in rows),
    )


def gpu_plots(results: list[Result]) -> Iterator[tuple[str, Bars]]:
    for result in results:
        series = {
            name: tuple(
                speed(result, model, side, "no-recompute", "tokens_per_second") for model in REAL
            )
            for side, name in SIDES.items()
        }
        measured = {name: values for name, values in series.items() if any(values)}
        if measured:
            yield (
                f"{slug(result)}-speed.svg",
                Bars(
                    title=f"{result['device']}: LoRA r 16, bf16, 4,096 tokens, no recompute",
                    unit="tokens per second",
                    groups=REAL,
                    series=measured,
                ),
            )


def on_gpus(results: Path) -> list[Result]:
    files = [json.loads(path.read_text()) for path in sorted(results.glob("gpu-*.json"))]
    return [result for result in files if not result["tiny"]]


def load(path: Path) -> list[Result]:
    results: list[Result] = json.loads(path.read_text())
    return results


def recorded(path: Path) -> Any:  # Any: JSON
    """Read a results file; None if the file does not exist."""
    if not path.exists():
        return None
    # The JSON lines use the old name of the precision as their key.
    return json.loads(path.read_text().replace("bf16_error_word", "bf16_split_master"))


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__).parse_args()
    main()
