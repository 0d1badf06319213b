"""Compare our language-model head with plain torch, TRL's chunked function and Liger.

    OMP_NUM_THREADS=1 python -m benchmarks.head --vocabulary 131072 --rows 1024

Times the forward and backward pass of a mean cross entropy. Backward computes gradients of the
hidden states and, with --trainable-head, of the head. All implementations run alternately in one
process. The result of an implementation is its shortest time of --repeats rounds. On a CPU, times
are CPU-seconds of one thread; on a GPU, they are seconds between two synchronizations. A separate
process for each implementation measures the peak memory minus the memory of the inputs. `full` is
plain torch: F.linear and F.cross_entropy. `ours_metrics` and `trl_metrics` also compute the
entropy, and whether each label is the most likely token. Prints one JSON line, which also contains
the environment variables that configure malloc.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, linear

from tunesmith_kernels.log_prob import token_log_probs

Side = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def full(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(linear(hidden, weight).float(), labels)


def ours(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return -token_log_probs(hidden, weight, None, labels).log_probs.mean()


def ours_metrics(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    scored = token_log_probs(hidden, weight, None, labels, entropy=True, top1=True)
    return -scored.log_probs.mean()


def trl_side(outputs: tuple[str, ...]) -> Side:
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction
    from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

    def trl(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        log_probs: torch.Tensor = ChunkedLogProbFunction.apply(
            hidden, weight, None, labels, 1.0, _CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0, outputs
        )[0]
        return -log_probs.mean()

    return trl


def liger_side() -> Side:
    from liger_kernel.transformers import (  # type: ignore[import-not-found, unused-ignore]  # optional
        LigerFusedLinearCrossEntropyLoss,
    )

    fused = LigerFusedLinearCrossEntropyLoss()
    return lambda hidden, weight, labels: fused(weight, hidden, labels)


def sides(device: str) -> dict[str, Callable[[], Side]]:
    """Return the implementations that can be measured. The keys are names. The values are functions
    that import and return the implementation."""
    installed: dict[str, Callable[[], Side]] = {
        "full": lambda: full,
        "ours": lambda: ours,
        "ours_metrics": lambda: ours_metrics,
    }
    if importlib.util.find_spec("trl"):
        installed["trl"] = lambda: trl_side(())
        installed["trl_metrics"] = lambda: trl_side(("entropy", "is_top1"))
    if device == "cuda" and importlib.util.find_spec("liger_kernel"):  # Triton only
        installed["liger"] = liger_side
    return installed


class Case:
    """Inputs of the measured functions, for one shape and dtype."""

    def __init__(self, args: argparse.Namespace, dtype: str) -> None:
        torch.manual_seed(0)
        options = {"device": args.device, "dtype": DTYPES[dtype]}
        self.hidden = torch.randn(args.rows, args.hidden, **options).requires_grad_()
        weight = torch.randn(args.vocabulary, args.hidden, **options) * 0.02
        self.weight = weight.requires_grad_(args.trainable_head)
        self.labels = torch.randint(args.vocabulary, (args.rows,), device=args.device)

    def run(self, side: Side) -> float:
        self.hidden.grad = self.weight.grad = None
        loss = side(self.hidden, self.weight, self.labels)
        torch.autograd.backward(loss)
        return loss.item()


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def clock(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def fastest(case: Case, functions: dict[str, Side], args: argparse.Namespace) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(args.repeats + 1):
        for name, side in functions.items():
            start = clock(args.device)
            case.run(side)
            if turn:  # the first round is a warm-up
                seconds[name].append(clock(args.device) - start)
    return {name: round(min(values), 4) for name, values in seconds.items()}


def memory_status(field: str) -> int:
    """Return a field of /proc/self/status in KiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0])


def extra_mib(case: Case, side: Side, device: str) -> float:
    """Measure peak memory minus the memory of the inputs, in MiB."""
    if device == "cuda":
        case.run(side)  # allocates the workspace of cuBLAS, which does not count
        case.hidden.grad = case.weight.grad = None
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        case.run(side)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    small = case.hidden[:1].detach().requires_grad_()
    torch.autograd.backward(
        side(small, case.weight[:8].detach(), case.labels[:1] % 8)
    )  # loads code
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = memory_status("VmRSS")
    case.run(side)
    return (memory_status("VmHWM") - before) / 2**10


def peaks(names: list[str], dtype: str) -> dict[str, float]:
    mib = {}
    for name in names:
        # -P: without it, kernels.py in this folder would hide a package with the same name
        command = [sys.executable, "-P", *sys.argv, "--memory-of", name, "--dtype", dtype]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        mib[name] = round(float(done.stdout), 1)
    return mib


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", type=int, default=131072)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", choices=DTYPES, help="default: all sides, one after the other")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--trainable-head", action="store_true")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.memory_of:
        side = sides(args.device)[args.memory_of]()
        print(extra_mib(Case(args, args.dtype), side, args.device))
        return
    result = {
        "benchmark": "head",
        "shape": {"V": args.vocabulary, "H": args.hidden, "N": args.rows},
        "trainable_head": args.trainable_head,
        "machine": torch.cuda.get_device_name() if args.device == "cuda" else cpu_name(),
        "torch": torch.__version__,
        "allocator": {name: v for name, v in os.environ.items() if name.startswith("MALLOC_")},
    }
    functions = {name: make() for name, make in sides(args.device).items()}
    for dtype in [args.dtype] if args.dtype else DTYPES:
        case = Case(args, dtype)
        losses = {name: case.run(side) for name, side in functions.items()}
        seconds = fastest(case, functions, args)
        memory = peaks(list(seconds), dtype)
        result[dtype] = {
            "time_ratio": round(seconds["ours"] / seconds["full"], 3),
            "memory_ratio": round(memory["ours"] / memory["full"], 3),
            "loss_difference": max(abs(loss - losses["full"]) for loss in losses.values()),
            "seconds": seconds,
            "extra_mib": memory,
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
