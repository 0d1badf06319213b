"""Measure loss and cost of full tuning in every precision, on the same rows in the same order:

    python -m benchmarks.precision

`loss`: loss on 200 held-out rows, relative to fp32. Each precision has one run of the trainer
(`tunesmith run`): 300 steps of tiny-math on GSM8K.

`cost`: extra CPU-seconds of an optimizer step, divided by the CPU-seconds of a whole training step
(2 x 1,024 tokens in bf16 with our kernels). The extra CPU-seconds are those of our optimizer minus
those of torch's fused fp32 AdamW. The model is a Llama of 12.4 million parameters. The benchmark
alternates between the optimizers, and also counts the bytes of weights and optimizer state.

Runs on one thread and prints one JSON line. `--data` is a folder with gsm8k/train.jsonl and
models/tiny-math.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import torch

from tunesmith_schema import EventKind, Precision, Recipe, RunEvent, RunSpec
from tunesmith_worker.engine.optimizers.eight_bit import StochasticAdamW
from tunesmith_worker.engine.optimizers.split_master import SplitMasterAdamW
from tunesmith_worker.engine.patches import patch

from .service_parts.machine import cpu_model
from .sft_side import make_model

DATA = Path(__file__).parents[2] / "shared" / "data"
HELD_OUT = 200
KEYS: dict[Precision, str] = {"bf16_split_master": "bf16_error_word"}
"""Keys in the results, for precisions whose key differs from their name."""
LOSS_BARS = {"bf16_error_word": 0.005, "bf16_sr8": 0.01}
"""Maximum relative difference between the final loss in a precision and the final loss in fp32."""
COST_BAR = 0.05
BYTES_BARS = {"bf16_error_word": 12.0, "bf16_sr8": 6.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=["loss", "cost"], default=["loss", "cost"])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9, help="rounds of the cost measurement")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "benchmark": "precision",
        "cpu": cpu_model(),
        "torch": torch.__version__,
    }
    if "loss" in options.only:
        result["loss"] = losses(options)
    if "cost" in options.only:
        result["cost"] = cost(options.rounds)
    print(json.dumps(result))
    return 0


def losses(options: argparse.Namespace) -> dict[str, Any]:
    runs = {KEYS.get(name, name): run(name, options) for name in get_args(Precision)}
    exact = runs["fp32"]["valid_loss"]
    for name, result in runs.items():
        result["relative_to_fp32"] = round(result["valid_loss"] / exact - 1.0, 6)
        result["bar"] = LOSS_BARS.get(name)
    return {
        "steps": options.steps,
        "learning_rate": options.learning_rate,
        "seed": options.seed,
        "runs": runs,
    }


def run(precision: Precision, options: argparse.Namespace) -> dict[str, Any]:
    rows = (options.data / "gsm8k" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    recipe = Recipe(
        tuning="full",
        precision=precision,
        max_steps=options.steps,
        learning_rate=options.learning_rate,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        eval_steps=options.steps,
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, part in (("train", rows[:-HELD_OUT]), ("valid", rows[-HELD_OUT:])):
            (folder / f"{name}.jsonl").write_text("\n".join(part), encoding="utf-8")
        spec = RunSpec(
            job_id="precision",
            attempt=1,
            model="tiny-math",
            model_path=str(options.data.resolve() / "models" / "tiny-math"),
            training_file="train.jsonl",
            validation_file="valid.jsonl",
            recipe=recipe,
            seed=options.seed,
        )
        (folder / "spec.json").write_text(spec.model_dump_json(), encoding="utf-8")
        # -P: without it, kernels.py in this folder would hide a package with the same name.
        command = [sys.executable, "-P", "-m", "tunesmith_worker.trainer", scratch]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, capture_output=True)
        if done.returncode:
            sys.exit(done.stderr.decode(errors="replace"))
        lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    points = [
        e.data for e in map(RunEvent.model_validate_json, lines) if e.kind == EventKind.METRICS
    ]
    lost = [float(str(p["updates_lost_fraction"])) for p in points if "updates_lost_fraction" in p]
    train = [float(str(p["train_loss"])) for p in points if "train_loss" in p]
    summary = {
        "valid_loss": float(str(points[-1]["valid_loss"])),
        "train_loss_last_20": round(statistics.mean(train[-20:]), 5),
        "updates_lost_fraction": round(statistics.mean(lost), 4) if lost else None,
    }
    print(f"{precision}: {summary}", file=sys.stderr)
    return summary


def cost(rounds: int) -> dict[str, Any]:
    model = make_model(torch.bfloat16)
    patch(model, ["attention_block", "mlp_block", "attention"])
    batch = torch.randint(8192, (1, 2048))
    ends = torch.tensor([0, 1024, 2048], dtype=torch.int32)

    def forward_and_backward() -> None:
        model(
            input_ids=batch,
            labels=batch,
            position_ids=torch.arange(1024).repeat(2)[None],
            cu_seq_lens_q=ends,
            cu_seq_lens_k=ends,
            max_length_q=1024,
            max_length_k=1024,
            use_cache=False,
        ).loss.backward()

    forward_and_backward()
    ours = list(model.parameters())
    wide = [torch.nn.Parameter(p.detach().float()) for p in ours]
    apart = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    for copies in (wide, apart):
        for copy, p in zip(copies, ours, strict=True):
            copy.grad = p.grad.to(copy.dtype).clone()
    optimizers: dict[str, torch.optim.Optimizer] = {
        "fp32": torch.optim.AdamW(wide, lr=1e-6, fused=True),
        "bf16_error_word": SplitMasterAdamW(ours, lr=1e-6),
        "bf16_sr8": StochasticAdamW(apart, lr=1e-6, seed=0),
    }
    seconds: dict[str, list[float]] = {name: [] for name in (*optimizers, "forward_and_backward")}
    for turn in range(rounds + 1):
        timed = {name: cpu_seconds(optimizer.step) for name, optimizer in optimizers.items()}
        timed["clip"] = cpu_seconds(lambda: torch.nn.utils.clip_grad_norm_(ours, 1.0))
        timed["forward_and_backward"] = cpu_seconds(forward_and_backward) + timed.pop("clip")
        if turn:  # the first round creates the optimizer states
            for name, value in timed.items():
                seconds[name].append(value)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    elements = sum(p.numel() for p in ours)
    extra = {}
    for name in ("bf16_error_word", "bf16_sr8"):
        step = median["forward_and_backward"] + median[name]
        extra[name] = round((median[name] - median["fp32"]) / step, 4)
    return {
        "parameters": elements,
        "cpu_seconds": {name: round(value, 5) for name, value in median.items()},
        "rounds": rounds,
        "times_fp32": {name: round(median[name] / median["fp32"], 2) for name in extra},
        "extra_share_of_step": extra,
        "extra_share_bar": COST_BAR,
        "bytes_per_parameter": {
            "bf16_error_word": held(optimizers["bf16_error_word"], ours) / elements,
            "bf16_sr8": held(optimizers["bf16_sr8"], apart) / elements,
        },
        "bytes_bars": BYTES_BARS,
    }


def held(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]) -> int:
    """Return the number of bytes of the weights and the optimizer state together."""
    state = [value for entry in optimizer.state.values() for value in entry.values()]
    tensors = [*parameters, *(value for value in state if isinstance(value, torch.Tensor))]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def cpu_seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


if __name__ == "__main__":
    sys.exit(main())
