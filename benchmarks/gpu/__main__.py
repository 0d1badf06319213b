"""Benchmarks of our kernels and trainer on a GPU, in one call of under 10 minutes:

    python -m benchmarks.gpu [--only correctness parity speed kernels grpo memory precision]
                             [--minutes 9.5] [--out FOLDER]
    python -m benchmarks.gpu --tiny       # on a CPU: the same code on tiny shapes

Needs torch, triton, transformers, peft, accelerate and the wheels in requirements-gpu-bench.txt.
Our packages need not be installed, and nothing is downloaded. The cases that matter most come first
(order.py). The results file FOLDER/gpu-DEVICE.json is written after every case. If a case fails,
the other cases still run, and the exit status is 1. After `--minutes`, the remaining cases are
recorded as skipped. A result that misses its bar (required value) is printed and recorded; the exit
status does not change.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from .children import run_all
from .order import PARTS, absent, all_jobs
from .record import Record

RESULTS = Path(__file__).parents[1] / "results"


def main() -> int:
    arguments = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    arguments.add_argument("--minutes", type=float, default=9.5, help="time limit")
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
    for part, case, why in absent(options.only, tiny=options.tiny):
        record.skip(part, case, why)
    jobs = all_jobs(options.only, tiny=options.tiny, rounds=options.rounds)
    run_all(jobs, record, deadline, environment(options.tiny))
    sys.stdout.write(summary(record) + "\n")
    return 1 if record.failed else 0


def has_card() -> bool:
    """Return True if this machine seems to have an NVIDIA GPU. A later check with torch shows
    whether the GPU works."""
    return shutil.which("nvidia-smi") is not None or any(Path("/dev").glob("nvidia*"))


def environment(tiny: bool) -> dict[str, str]:
    env = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    # Only one GPU is visible, because the Trainer would split batches over several GPUs.
    env["CUDA_VISIBLE_DEVICES"] = env.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    if tiny:
        env |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return env


def summary(record: Record) -> str:
    """Return a table of results and required values, the numbers of failed and skipped cases, and
    the results file's name.
    """
    met = {True: "met", False: "MISSED", None: "open"}
    lines = [""]
    for bar in record.results["bars"]:
        bound = f">= {bar['at_least']:g}" if "at_least" in bar else f"<= {bar['at_most']:g}"
        lines.append(f"{met[bar['met']]:6s} {bar['bar']}: {bar['figure']} ({bound})")
    failed, skipped = (len(record.results[key]) for key in ("errors", "skipped"))
    return "\n".join([*lines, f"{failed} failed, {skipped} skipped; {record.path.name}"])


if __name__ == "__main__":
    sys.exit(main())
