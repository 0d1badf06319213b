"""Kill processes of the service at random moments and check that nothing is lost (`make chaos`).

Prints one line for each kill and a table for each stack. The exit status is 1 if a job has
problems.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..end_to_end.service import write_rows
from ..tiny_model import make_tiny_model
from .campaign import Campaign, Result
from .checks import Weights
from .embedded import EmbeddedStack
from .larger import LargerStack
from .recipes import RECIPES
from .stack import Stack

STACKS: dict[str, type[Stack]] = {stack.name: stack for stack in (EmbeddedStack, LargerStack)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="kills, divided among stacks (300)")
    parser.add_argument("--stack", choices=[*STACKS, "both"], default="both", help="(both)")
    parser.add_argument("--recipe", choices=RECIPES, action="append", help="default: all in turn")
    parser.add_argument("--seed", type=int, default=0, help="seed of targets and times (0)")
    parser.add_argument("--out", type=Path, help="JSON file of the results")
    parser.add_argument("--keep", type=Path, help="new folder for the stacks' data and logs")
    given = parser.parse_args()
    stacks = list(STACKS) if given.stack == "both" else [given.stack]
    root = given.keep or Path(tempfile.mkdtemp(prefix="tunesmith-chaos-"))
    try:
        results = run(root, stacks, given.kills, given.recipe or list(RECIPES), given.seed, {})
    finally:
        if given.keep is None:
            shutil.rmtree(root, ignore_errors=True)
    if given.out is not None:
        given.out.write_text(json.dumps(_document(results, given.seed), indent=1) + "\n")
    return 1 if any(result.problems or result.exits for result in results) else 0


def run(
    root: Path,
    stacks: list[str],
    kills: int,
    recipes: list[str],
    seed: int,
    expected: dict[str, Weights],
) -> list[Result]:
    """Divide the kills among the stacks, and run one stack after the other. `expected` keeps the
    weights of jobs that were left alone, by recipe."""
    root.mkdir(mode=0o755, exist_ok=True)
    models = root / "models"
    make_tiny_model(models / "tiny")
    rows = write_rows(root / "train.jsonl")
    results = []
    for number, name in enumerate(stacks):
        share = kills // len(stacks) + (number < kills % len(stacks))
        stack = STACKS[name](root / name, models)
        try:
            stack.start()
            campaign = Campaign(stack, rows, recipes, seed=seed, expected=expected, tell=_print)
            results.append(campaign.run(share))
        finally:
            stack.close()
        _print(_table(results[-1]))
    return results


def _table(result: Result) -> str:
    total, minutes = sum(result.kills.values()), result.kill_seconds / 60
    lines = ["", f"{result.stack:12} kills", *(f"{k:12} {n:5}" for k, n in result.kills.items())]
    lines.append(f"{'total':12} {total:5}   {total / minutes:.1f} a minute")
    lines.append(
        f"{result.jobs} jobs, {result.attempts} attempts, {result.events} events, "
        f"{result.files} files"
    )
    lines += [f"EXIT     {line}" for line in result.exits]
    lines += [f"PROBLEM  {line}" for line in result.problems] or ["no problems"]
    return "\n".join(lines) + "\n"


def _document(results: list[Result], seed: int) -> dict[str, Any]:
    stacks = {
        result.stack: {
            "kills": dict(sorted(result.kills.items())),
            "kill_seconds": result.kill_seconds,
            "jobs": result.jobs,
            "attempts": result.attempts,
            "events": result.events,
            "files": result.files,
            "unexplained_exits": result.exits,
            "problems": result.problems,
        }
        for result in results
    }
    return {
        "benchmark": "chaos",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "seed": seed,
        "stacks": stacks,
    }


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
