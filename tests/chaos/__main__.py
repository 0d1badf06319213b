"""Long chaos test (`make chaos`): kills every victim `--kills` times over all recipes.

Prints the problems of each job and writes one JSON line for each job to `--out`. The exit status is
1 if a job has problems.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from ..end_to_end.service import Service, write_rows
from ..tiny_model import make_tiny_model
from .campaign import ENV, RECIPES, VICTIMS, Campaign, Ending

KILLS_PER_JOB = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="kills of each victim (30)")
    parser.add_argument("--victim", choices=VICTIMS, action="append", help="default: all")
    parser.add_argument("--recipe", choices=RECIPES, action="append", help="default: all in turn")
    parser.add_argument("--seed", type=int, default=0, help="seed of the times of the kills (0)")
    parser.add_argument("--out", type=Path, help="file for one JSON line per job")
    given = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="tunesmith-chaos-") as folder:
        root = Path(folder)
        make_tiny_model(root / "models" / "tiny")
        service = Service(root / "service" / "data", root / "models", **ENV).start()
        try:
            campaign = Campaign(service, write_rows(root / "train.jsonl"), seed=given.seed)
            with campaign.watcher:
                for victim in given.victim or VICTIMS:
                    endings = _all_of(campaign, victim, given)
                    wrong += sum(map(_told, endings))
        finally:
            service.close()
    return 1 if wrong else 0


def _all_of(campaign: Campaign, victim: str, given: argparse.Namespace) -> Iterator[Ending]:
    hits = 0
    for recipe in itertools.cycle(given.recipe or RECIPES):
        if hits >= given.kills:
            return
        ending = campaign.torment(victim, recipe, min(KILLS_PER_JOB, given.kills - hits))
        hits += ending.hits
        if given.out is not None:
            with given.out.open("a") as file:
                file.write(json.dumps(asdict(ending)) + "\n")
        yield ending


def _told(ending: Ending) -> bool:
    problems = "; ".join(ending.problems) or "ok"
    sys.stdout.write(
        f"{ending.victim:10} {ending.recipe:22} {ending.hits} kills, {ending.resumed} resumed, "
        f"{ending.seconds:5.1f} s: {problems}\n"
    )
    sys.stdout.flush()
    return bool(ending.problems)


if __name__ == "__main__":
    sys.exit(main())
