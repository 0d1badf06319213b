"""Benchmarks of our kernels and trainer on a GPU, in one call of under 8 minutes:

    python -m benchmarks.gpu [--only kernels parity speed grpo memory precision] [--minutes 7.5]
                             [--out FOLDER]
    python -m benchmarks.gpu --tiny       # on a CPU: the same code on tiny shapes

Needs torch, triton, transformers, peft, accelerate and the wheels in requirements-gpu-bench.txt.
Our packages need not be installed, and nothing is downloaded. The results file
FOLDER/gpu-DEVICE.json is written after every case. If a case fails, the other cases still run, and
the exit status is 1. After `--minutes`, the remaining cases are recorded as skipped. A figure that
misses its bar (required value) is printed and recorded; the exit status does not change.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from .children import Job, run_all
from .grpo_plan import REAL as GRPO_MODEL
from .grpo_plan import TINY as TINY_GRPO_MODEL
from .grpo_plan import grpo_cases
from .record import Record
from .speed_plan import REAL, TINY, speed_cases

RESULTS = Path(__file__).parents[1] / "results"
PARTS = ("kernels", "parity", "speed", "memory", "precision", "grpo")
LONGEST = {"memory": 150, "precision": 600}
"""Time limit of a case in seconds. The loss cases of `precision` need more than the default
time."""
OPTIONAL = {"liger": "liger_kernel", "unsloth": "unsloth"}
"""Compared trainers that need a GPU, with the package that each trainer needs."""


def main() -> int:
    arguments = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    arguments.add_argument("--minutes", type=float, default=7.5, help="time limit")
    arguments.add_argument(
        "--rounds", type=int, default=2, help="runs of each trainer in `speed` and `grpo`"
    )
    arguments.add_argument("--out", type=Path, default=RESULTS)
    arguments.add_argument("--tiny", action="store_true")
    options = arguments.parse_args()
    if not options.tiny and not has_card():
        arguments.error("no NVIDIA GPU found; use --tiny to check the code on a CPU")
    deadline = time.monotonic() + 60 * options.minutes
    record = Record(options.out, options.only, tiny=options.tiny, minutes=options.minutes)
    jobs = [job for part in options.only for job in jobs_of(part, options.tiny, options.rounds)]
    run_all(jobs, record, deadline, environment(options.tiny))
    sys.stdout.write(summary(record) + "\n")
    return 1 if record.failed else 0


def has_card() -> bool:
    """Return True if this machine seems to have an NVIDIA GPU. Only torch can later check if the
    GPU works."""
    return shutil.which("nvidia-smi") is not None or any(Path("/dev").glob("nvidia*"))


def environment(tiny: bool) -> dict[str, str]:
    env = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    # Only one GPU is visible, because the Trainer would split batches over several GPUs.
    env["CUDA_VISIBLE_DEVICES"] = env.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    if tiny:
        env |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return env


def speed_jobs(tiny: bool, rounds: int) -> Iterator[Job]:
    """Yield jobs for all trainers in every round; every second round reverses the order of the
    trainers. Models whose figures have a required value come first."""
    sides = ["ours", "stock"]
    if not tiny:
        sides += [side for side, package in OPTIONAL.items() if find_spec(package) is not None]
    for turn in range(1, rounds + 1):
        for model in TINY if tiny else REAL:
            for side in sides if turn % 2 else reversed(sides):
                cases = speed_cases(model, side, turn)
                yield Job(part="speed", module="benchmarks.gpu.speed", cases=cases, seconds=90)


def jobs_of(part: str, tiny: bool, rounds: int) -> Iterator[Job]:
    if part == "speed":
        yield from speed_jobs(tiny, rounds)
    elif part == "grpo":
        for cases in grpo_cases(TINY_GRPO_MODEL if tiny else GRPO_MODEL, rounds):
            yield Job(part=part, module="benchmarks.gpu.grpo", cases=cases, seconds=150)
    else:
        yield Job(part=part, module=f"benchmarks.gpu.{part}", seconds=LONGEST.get(part, 90))


def summary(record: Record) -> str:
    """Return a table of figures and required values, the numbers of failed and skipped cases, and
    the results file's name."""
    met = {True: "met", False: "MISSED", None: "open"}
    lines = [""]
    for bar in record.results["bars"]:
        bound = f">= {bar['at_least']:g}" if "at_least" in bar else f"<= {bar['at_most']:g}"
        lines.append(f"{met[bar['met']]:6s} {bar['bar']}: {bar['figure']} ({bound})")
    failed, skipped = (len(record.results[key]) for key in ("errors", "skipped"))
    return "\n".join([*lines, f"{failed} failed, {skipped} skipped; {record.path.name}"])


if __name__ == "__main__":
    sys.exit(main())
